#include "topo/picture.h"

#include <gtest/gtest.h>

#include <pugixml.hpp>
#include <set>

#include "topo/machine_picture.h"
#include "topology/search.h"
#include "topology/testing/testdata.h"

namespace tutti::tools::topo {
namespace {

using topology::Demand;
using topology::Graph;
using topology::NodeKind;
using topology::Paths;
using topology::TestDataPath;
using topology::TestGraph;
using topology::TestMachine;
using topology::TestMachines;

TEST(Picture, WritesWhatXmlReadersRead) {
  Picture picture{100, 50, {}};
  picture.shapes.push_back(Box{{1, 2}, 30, 20, 4, "#ffffff", "#000000"});
  picture.shapes.push_back(Curve{{{0, 0}, {1, 1}, {2, 2}, {3, 3}}, true, "#ff0000", 2, true});
  picture.shapes.push_back(Mark{{{0, 0}, {5, 5}, {0, 5}}, "#00ff00"});
  picture.shapes.push_back(Label{{10, 10}, "<&\"\x01>", 12});
  pugi::xml_document document;
  ASSERT_TRUE(document.load_string(ToSvg(picture).c_str()));
  const pugi::xml_node svg = document.child("svg");
  EXPECT_EQ(svg.attribute("width").as_int(), 100);
  EXPECT_STREQ(svg.child("text").text().get(), "<&\">");
  EXPECT_EQ(std::string(svg.child("path").attribute("d").value()).find("M0.0 0.0 C1.0 1.0"), 0u);
  EXPECT_TRUE(svg.child("polygon"));
}

// The whole drawing of every machine lies within the picture, and boxes do not cover one another.
TEST(MachinePicture, KeepsWithinItsBounds) {
  for (const std::string& path : TestMachines()) {
    SCOPED_TRACE(path);
    const Graph graph = TestGraph(TestMachine(path)).graph;
    const Paths paths = ComputePaths(graph, {});
    Demand demand;
    demand.inter_host = !graph.OfKind(NodeKind::kNet).empty();
    const auto channels = Search(graph, paths, demand);
    ASSERT_TRUE(channels.ok());
    const Picture picture = DrawMachine(graph, paths, &channels.value(), "machine");
    const auto inside = [&](Point point) {
      EXPECT_GE(point.x, 0);
      EXPECT_GE(point.y, 0);
      EXPECT_LE(point.x, picture.width);
      EXPECT_LE(point.y, picture.height);
    };
    size_t device_boxes = 0;
    std::vector<Box> nodes;
    for (const Shape& shape : picture.shapes) {
      if (const Box* const box = std::get_if<Box>(&shape)) {
        inside(box->corner);
        inside({box->corner.x + box->width, box->corner.y + box->height});
        if (box->outline.empty() || box->radius > 8) continue;  // grounds of labels, stations
        nodes.push_back(*box);
        device_boxes += box->fill == "#dff3df" ? 1 : 0;
      } else if (const Label* const label = std::get_if<Label>(&shape)) {
        inside(label->at);
      } else if (const Curve* const curve = std::get_if<Curve>(&shape)) {
        for (const Point& point : curve->points) inside(point);
      }
    }
    EXPECT_EQ(device_boxes, graph.Devices().size());
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const Box& a = nodes[i];
        const Box& b = nodes[j];
        const bool apart =
            a.corner.x + a.width <= b.corner.x || b.corner.x + b.width <= a.corner.x ||
            a.corner.y + a.height <= b.corner.y || b.corner.y + b.height <= a.corner.y;
        EXPECT_TRUE(apart) << "boxes " << i << " and " << j;
      }
    }
  }
}

TEST(MachinePicture, GivesEachChannelAColour) {
  const Graph graph = TestGraph(TestMachine(TestDataPath("machines/four-gpu-example.xml"))).graph;
  const Paths paths = ComputePaths(graph, {});
  const auto channels = Search(graph, paths, {});
  ASSERT_TRUE(channels.ok());
  const Picture bare = DrawMachine(graph, paths, nullptr, "bare");
  const Picture full = DrawMachine(graph, paths, &channels.value(), "full");
  const auto colours = [](const Picture& picture) {
    std::set<std::string> found;
    for (const Shape& shape : picture.shapes) {
      const Curve* const curve = std::get_if<Curve>(&shape);
      if (curve != nullptr && !curve->dashed) found.insert(curve->colour);
    }
    return found.size();
  };
  EXPECT_EQ(colours(bare), 1u);  // wires
  EXPECT_GE(colours(full), 4u);  // a colour for each ring
}

}  // namespace
}  // namespace tutti::tools::topo
