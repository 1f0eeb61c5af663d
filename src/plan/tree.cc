#include "plan/tree.h"

namespace tutti {
namespace {

// Renames the places of a tree by `map`; -1 remains "none".
template <class Map>
TreeView MapTree(TreeView tree, Map map) {
  if (tree.parent >= 0) tree.parent = map(tree.parent);
  for (int& child : tree.children)
    if (child >= 0) child = map(child);
  return tree;
}

}  // namespace

TreeView BinaryTree(int place, int num_places) {
  TreeView tree;
  if (place == 0) {
    int bit = 1;
    while (bit * 2 < num_places) bit *= 2;
    if (num_places > 1) tree.children[0] = bit;
    return tree;
  }
  const int bit = place & -place;
  // The lowest bit of the parent's place is twice as large as `bit`. The parent lies above if a
  // place above exists, else below.
  const int above = (place ^ bit) | bit << 1;
  tree.parent = above < num_places ? above : place ^ bit;
  if (bit > 1) tree.children[0] = place - bit / 2;
  for (int step = bit / 2; step > 0; step /= 2) {
    if (place + step < num_places) {
      tree.children[1] = place + step;
      break;
    }
  }
  return tree;
}

TreeView MirroredTree(int place, int num_places) {
  if (num_places % 2 == 0) {
    const auto mirror = [num_places](int p) { return num_places - 1 - p; };
    return MapTree(BinaryTree(mirror(place), num_places), mirror);
  }
  const auto shift = [num_places](int p) { return (p + 1) % num_places; };
  return MapTree(BinaryTree((place + num_places - 1) % num_places, num_places), shift);
}

}  // namespace tutti
