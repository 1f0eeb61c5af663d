#include "topo/picture.h"

#include <fmt/format.h>

#include <string_view>

namespace tutti::tools::topo {
namespace {

std::string Escaped(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20) safe += c;
    }
  }
  return safe;
}

class SvgWriter {
 public:
  explicit SvgWriter(const Picture& picture) {
    text_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
        "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"{2}\">\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
        picture.width, picture.height, kPictureFont);
    for (const Shape& shape : picture.shapes) std::visit(*this, shape);
    text_ += "</svg>\n";
  }

  std::string Take() { return std::move(text_); }

  void operator()(const Box& box) {
    text_ += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"{:.1f}\" "
        "fill=\"{}\"",
        box.corner.x, box.corner.y, box.width, box.height, box.radius,
        box.fill.empty() ? "none" : box.fill);
    if (!box.outline.empty()) text_ += fmt::format(" stroke=\"{}\"", box.outline);
    text_ += "/>\n";
  }

  void operator()(const Curve& curve) {
    text_ += "<path d=\"";
    for (size_t i = 0; i < curve.points.size(); ++i) {
      const char* const step = i == 0 ? "M" : curve.bent ? (i == 1 ? " C" : " ") : " L";
      text_ += fmt::format("{}{:.1f} {:.1f}", step, curve.points[i].x, curve.points[i].y);
    }
    text_ += fmt::format(
        "\" fill=\"none\" stroke=\"{}\" stroke-width=\"{:.1f}\" stroke-linejoin=\"round\" "
        "stroke-linecap=\"round\"{}/>\n",
        curve.colour, curve.width, curve.dashed ? " stroke-dasharray=\"5 5\"" : "");
  }

  void operator()(const Mark& mark) {
    text_ += "<polygon points=\"";
    for (const Point& point : mark.points) text_ += fmt::format("{:.1f},{:.1f} ", point.x, point.y);
    text_ += fmt::format("\" fill=\"{}\"/>\n", mark.fill);
  }

  void operator()(const Label& label) {
    constexpr const char* kAnchors[] = {"start", "middle", "end"};
    text_ += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{:.1f}\" fill=\"{}\" text-anchor=\"{}\"{}>{}"
        "</text>\n",
        label.at.x, label.at.y, label.size, label.colour,
        kAnchors[static_cast<size_t>(label.anchor)], label.bold ? " font-weight=\"bold\"" : "",
        Escaped(label.text));
  }

 private:
  std::string text_;
};

}  // namespace

std::string ToSvg(const Picture& picture) { return SvgWriter(picture).Take(); }

}  // namespace tutti::tools::topo
