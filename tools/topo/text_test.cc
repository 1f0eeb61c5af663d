#include "topo/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "topology/testing/testdata.h"

namespace tutti::tools::topo {
namespace {

using topology::BuiltGraph;
using topology::Paths;
using topology::TestDataPath;
using topology::TestGraph;
using topology::TestMachine;

using testing::HasSubstr;
using testing::Not;

BuiltGraph Named(const std::string& name) {
  return TestGraph(TestMachine(TestDataPath("machines/" + name + ".xml")));
}

TEST(Text, TreeShowsEveryDeviceBelowItsSwitch) {
  const std::string tree = TreeText(Named("dgx-h100").graph);
  EXPECT_THAT(tree, HasSubstr("CPU 0  Intel, Sapphire Rapids, 22 GB/s to CPU 1\n"
                              "  PCI "));
  EXPECT_THAT(tree, HasSubstr("\n    GPU 0  rank 0, "));
  EXPECT_THAT(tree, HasSubstr("NVL 370.8 to NVSwitch, GPUDirect\n"));
  EXPECT_THAT(tree, HasSubstr("\n    NIC "));
  EXPECT_THAT(tree, HasSubstr("\n      NET 7  mlx5_7, 50 GB/s, GPUDirect\n"));
  EXPECT_THAT(tree, HasSubstr("\nNVSwitch  joins 8 GPUs\n"));
}

TEST(Text, MatrixHasKindAndBandwidth) {
  const BuiltGraph built = Named("pcie-a10x4");
  EXPECT_EQ(MatrixText(built.graph, ComputePaths(built.graph, {})),
            "       GPU 0     GPU 1     GPU 2   GPU 3   NET 0     CPU 0     CPU 1\n"
            "GPU 0  X         PHB 24    SYS 10  SYS 10  PHB 12.5  PHB 24    SYS 10\n"
            "GPU 1  PHB 24    X         SYS 10  SYS 10  PHB 12.5  PHB 24    SYS 10\n"
            "GPU 2  SYS 10    SYS 10    X       PHB 24  SYS 10    SYS 10    PHB 24\n"
            "GPU 3  SYS 10    SYS 10    PHB 24  X       SYS 10    SYS 10    PHB 24\n"
            "NET 0  PHB 12.5  PHB 12.5  SYS 10  SYS 10  X         PHB 12.5  SYS 10\n");
}

TEST(Text, LargeMachinesAreShownByKindAlone) {
  const BuiltGraph built = Named("gb200-nvl72");
  const Paths paths = ComputePaths(built.graph, {});
  EXPECT_THAT(MatrixText(built.graph, paths), Not(HasSubstr("721")));
  EXPECT_THAT(MatrixText(built.graph, paths), HasSubstr("17/GPU 3"));
  EXPECT_THAT(TreeText(built.graph), HasSubstr("host 17\n  CPU 0"));
  EXPECT_THAT(LegendText(built.graph, paths), HasSubstr("DIS  not joined"));
}

}  // namespace
}  // namespace tutti::tools::topo
