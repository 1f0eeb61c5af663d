#pragma once

// Holds a picture as a value: boxes, curves and labels, in the order in which they cover one
// another. machine_picture.h makes a picture; ToSvg and png.h turn a picture into a format. Sizes
// are in pixels, the origin is at the upper left, colours are "#rrggbb". Pure.

#include <string>
#include <variant>
#include <vector>

namespace tutti::tools::topo {

struct Point {
  double x = 0;
  double y = 0;
};

struct Box {
  Point corner;  // upper left
  double width = 0;
  double height = 0;
  double radius = 0;    // radius of its corners
  std::string fill;     // empty: not filled
  std::string outline;  // empty: none
};

struct Curve {
  // Joined by straight lines; or, when `bent`, four points of a cubic Bézier curve.
  std::vector<Point> points;
  bool bent = false;
  std::string colour;
  double width = 1;
  bool dashed = false;
};

// A filled polygon, for arrow heads and marks.
struct Mark {
  std::vector<Point> points;
  std::string fill;
};

enum class Anchor { kStart, kMiddle, kEnd };

struct Label {
  Point at;  // a point of the text's base line
  std::string text;
  double size = 12;
  std::string colour = "#1b1f24";
  Anchor anchor = Anchor::kMiddle;
  bool bold = false;
};

using Shape = std::variant<Box, Curve, Mark, Label>;

struct Picture {
  double width = 0;
  double height = 0;
  std::vector<Shape> shapes;
};

inline constexpr const char* kPictureFont = "DejaVu Sans, Helvetica, Arial, sans-serif";

// Returns a whole SVG file. Texts are escaped; control characters are left out.
std::string ToSvg(const Picture& picture);

}  // namespace tutti::tools::topo
