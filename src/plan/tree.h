#pragma once

// Double binary trees: two trees over the same ranks in which almost every rank is an inner node of
// one tree and a leaf of the second tree. Together the trees use every link in both directions.
// After P. Sanders, J. Speck and J. L. Träff, "Two-tree algorithms for full bandwidth broadcast,
// reduction and scan" (2009).

#include "plan/work.h"

namespace tutti {

// Returns the neighbours of `place` in the in-order binary tree over the places 0 … num_places-1.
// Place 0 is the root and has a single child. An inner place p with lowest set bit b has the
// children p - b/2 and p + b/2, or p plus the next smaller step that exists.
TreeView BinaryTree(int place, int num_places);

// Returns the neighbours of `place` in the second tree: mirrored for an even number of places,
// shifted by one for an odd number.
TreeView MirroredTree(int place, int num_places);

}  // namespace tutti
