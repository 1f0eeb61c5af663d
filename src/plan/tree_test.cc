#include "plan/tree.h"

#include <gtest/gtest.h>

#include <vector>

namespace tutti {
namespace {

using TreeFunction = TreeView (*)(int, int);

// Every rank except the root has a parent with the rank among its children, and following parents
// ends at the root.
void CheckTree(TreeFunction tree, int n) {
  int roots = 0;
  for (int p = 0; p < n; ++p) {
    const TreeView view = tree(p, n);
    if (view.parent < 0) {
      ++roots;
    } else {
      const TreeView parent = tree(view.parent, n);
      EXPECT_TRUE(parent.children[0] == p || parent.children[1] == p)
          << "place " << p << " of " << n;
    }
    for (const int child : view.children) {
      if (child >= 0) {
        EXPECT_EQ(tree(child, n).parent, p);
      }
    }
    int at = p, steps = 0;
    while (tree(at, n).parent >= 0 && steps <= 2 * n) at = tree(at, n).parent, ++steps;
    EXPECT_LE(steps, 14) << "depth of place " << p << " of " << n;
  }
  EXPECT_EQ(roots, 1) << n;
}

TEST(Tree, BothTreesSpanAllPlaces) {
  for (int n = 1; n <= 300; ++n) {
    CheckTree(BinaryTree, n);
    CheckTree(MirroredTree, n);
  }
}

TEST(Tree, InnerRanksOfOneAreLeavesOfTheOther) {
  for (int n = 2; n <= 128; n += 2) {
    for (int p = 0; p < n; ++p) {
      const bool inner_one = BinaryTree(p, n).children[0] >= 0 || BinaryTree(p, n).children[1] >= 0;
      const bool inner_two =
          MirroredTree(p, n).children[0] >= 0 || MirroredTree(p, n).children[1] >= 0;
      const bool is_root = BinaryTree(p, n).parent < 0 || MirroredTree(p, n).parent < 0;
      EXPECT_FALSE(inner_one && inner_two && !is_root) << "place " << p << " of " << n;
    }
  }
}

}  // namespace
}  // namespace tutti
