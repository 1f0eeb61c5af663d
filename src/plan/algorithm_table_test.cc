#include "plan/algorithm_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <utility>

namespace tutti {
namespace {

constexpr Collective kReductions[] = {Collective::kAllReduce, Collective::kReduce,
                                      Collective::kReduceScatter, Collective::kReduceScatterV};

// Returns the row of ranks on hosts for the collective, or null without such a row. The function
// checks the needs kOneHost and kSeveralHosts only; the caller must check all other needs.
const AlgorithmRow* FindHostRow(Algorithm algorithm, Collective collective, bool one_host) {
  const Need excluded = one_host ? Need::kSeveralHosts : Need::kOneHost;
  const auto rows = RowsOf(RankKind::kHost);
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const AlgorithmRow& one) {
    return one.algorithm == algorithm && one.Serves(collective) && !one.Needs(excluded);
  });
  return row == rows.end() ? nullptr : &*row;
}

template <class Visit>
void VisitCollectives(const Visit& visit) {
  for (int c = 0; c < kNumCollectives; ++c) visit(static_cast<Collective>(c));
}

TEST(AlgorithmTableTest, HostsHaveAWayForEveryCollective) {
  VisitCollectives([](Collective collective) {
    for (const bool one_host : {true, false}) {
      int ways = 0;
      for (int a = 0; a < kNumAlgorithms; ++a) {
        const AlgorithmRow* const row =
            FindHostRow(static_cast<Algorithm>(a), collective, one_host);
        if (row != nullptr && !row->Needs(Need::kReadableBuffers)) ++ways;
      }
      EXPECT_GE(ways, 1) << Name(collective) << (one_host ? " on one host" : " between hosts");
    }
  });
}

// No two rows serve the same algorithm and collective on one host, or between hosts.
TEST(AlgorithmTableTest, HostRowsAreDistinct) {
  for (const Need excluded : {Need::kSeveralHosts, Need::kOneHost}) {
    std::set<std::pair<Algorithm, Collective>> seen;
    for (const AlgorithmRow& row : RowsOf(RankKind::kHost)) {
      EXPECT_LT(row.where, Where::kWindows);
      VisitCollectives([&](Collective collective) {
        if (row.Serves(collective) && !row.Needs(excluded)) {
          EXPECT_TRUE(seen.insert({row.algorithm, collective}).second)
              << Name(row.algorithm) << " " << Name(collective);
        }
      });
    }
  }
}

TEST(AlgorithmTableTest, MeshRowsAreFoundByTheirNumber) {
  for (const AlgorithmRow& row : RowsOf(RankKind::kMesh)) {
    EXPECT_EQ(&RowOf(row.id), &row) << row.description;
    EXPECT_GE(row.where, Where::kWindows);
    EXPECT_TRUE(Is(row.id, row.algorithm));
    EXPECT_EQ(IsRing(row.id), row.algorithm == Algorithm::kRing);
  }
}

TEST(AlgorithmTableTest, OnlyReductionsAdd) {
  const auto expect_order = [](const AlgorithmRow& row) {
    VisitCollectives([&](Collective collective) {
      if (!row.Serves(collective)) return;
      const bool adds = std::find(std::begin(kReductions), std::end(kReductions), collective) !=
                        std::end(kReductions);
      EXPECT_EQ(row.order != AddingOrder::kAddsNothing, adds)
          << Name(row.algorithm) << " " << Name(collective);
    });
  };
  for (const AlgorithmRow& row : RowsOf(RankKind::kHost)) expect_order(row);
  for (const AlgorithmRow& row : RowsOf(RankKind::kMesh)) expect_order(row);
  for (const AlgorithmRow& row : RowsOf(RankKind::kChannels)) expect_order(row);
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

// `make docs` runs this test with WRITE_DOCS set, and the test then writes the table instead of
// comparing the table.
TEST(AlgorithmTableDocsTest, ThePageIsUpToDate) {
  const std::string path = std::string(TUTTI_SOURCE_DIR) + "/docs/algorithms.md";
  const std::string begin = "<!-- the table of src/plan/algorithms.def, by `make docs` -->\n";
  const std::string end = "<!-- end of the table -->\n";
  const std::string page = ReadAll(path);
  const size_t from = page.find(begin);
  const size_t to = page.find(end);
  ASSERT_TRUE(from != std::string::npos && to != std::string::npos) << path;
  const std::string fresh =
      page.substr(0, from) + begin + AlgorithmTableMarkdown() + page.substr(to);
  if (std::getenv("WRITE_DOCS") != nullptr) std::ofstream(path) << fresh;
  EXPECT_EQ(ReadAll(path), fresh) << "run `make docs`";
}

}  // namespace
}  // namespace tutti
