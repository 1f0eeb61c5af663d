#pragma once

// Double binary trees: two trees over the same ranks such that (almost) every rank is inner in one
// and a leaf in the other, so that together they use every link in both directions. After P.
// Sanders, J. Speck and J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction
// and scan" (2009).

#include "plan/work.h"

namespace tutti {

// Returns the place in the in-order binary tree over places 0 … num_places-1. Place 0 is the root
// and has one child; an inner place p with lowest set bit b has the children p - b/2 and p + b/2
// (or the next smaller step that exists).
TreeView BinaryTree(int place, int num_places);

// Returns the place in the second tree: mirrored for an even number of places, shifted by one for
// an odd number.
TreeView MirroredTree(int place, int num_places);

}  // namespace tutti
