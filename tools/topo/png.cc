#include "topo/png.h"

#ifdef TUTTI_HAVE_CAIRO

#include <cairo.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <numbers>

namespace tutti::tools::topo {
namespace {

using topology::Anchor;
using topology::Box;
using topology::Curve;
using topology::Label;
using topology::Mark;
using topology::Picture;
using topology::Point;

// The most pixels of a side; cairo's own limit is a little higher.
constexpr double kMostPixels = 30'000;

class CairoPainter {
 public:
  CairoPainter(cairo_t* cairo, double scale) : cairo_(cairo) { cairo_scale(cairo_, scale, scale); }

  void operator()(const Box& box) {
    const double quarter = std::numbers::pi / 2;
    const double right = box.corner.x + box.width - box.radius;
    const double bottom = box.corner.y + box.height - box.radius;
    const double left = box.corner.x + box.radius;
    const double top = box.corner.y + box.radius;
    cairo_new_sub_path(cairo_);
    cairo_arc(cairo_, right, top, box.radius, -quarter, 0);
    cairo_arc(cairo_, right, bottom, box.radius, 0, quarter);
    cairo_arc(cairo_, left, bottom, box.radius, quarter, 2 * quarter);
    cairo_arc(cairo_, left, top, box.radius, 2 * quarter, 3 * quarter);
    cairo_close_path(cairo_);
    if (!box.fill.empty()) {
      Colour(box.fill);
      cairo_fill_preserve(cairo_);
    }
    if (!box.outline.empty()) {
      Colour(box.outline);
      cairo_set_line_width(cairo_, 1);
      cairo_stroke(cairo_);
    }
    cairo_new_path(cairo_);
  }

  void operator()(const Curve& curve) {
    Colour(curve.colour);
    cairo_set_line_width(cairo_, curve.width);
    cairo_set_line_join(cairo_, CAIRO_LINE_JOIN_ROUND);
    cairo_set_line_cap(cairo_, CAIRO_LINE_CAP_ROUND);
    constexpr double kDashes[] = {5, 5};
    cairo_set_dash(cairo_, kDashes, curve.dashed ? 2 : 0, 0);
    const auto& p = curve.points;
    cairo_move_to(cairo_, p[0].x, p[0].y);
    if (curve.bent) {
      cairo_curve_to(cairo_, p[1].x, p[1].y, p[2].x, p[2].y, p[3].x, p[3].y);
    } else {
      for (const Point& point : p) cairo_line_to(cairo_, point.x, point.y);
    }
    cairo_stroke(cairo_);
    cairo_set_dash(cairo_, kDashes, 0, 0);
  }

  void operator()(const Mark& mark) {
    Colour(mark.fill);
    cairo_new_path(cairo_);  // A label leaves its end as the current point.
    for (const Point& point : mark.points) cairo_line_to(cairo_, point.x, point.y);
    cairo_close_path(cairo_);
    cairo_fill(cairo_);
  }

  void operator()(const Label& label) {
    Colour(label.colour);
    cairo_select_font_face(cairo_, "DejaVu Sans", CAIRO_FONT_SLANT_NORMAL,
                           label.bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(cairo_, label.size);
    cairo_text_extents_t extents;
    cairo_text_extents(cairo_, label.text.c_str(), &extents);
    const double part = label.anchor == Anchor::kStart ? 0 : label.anchor == Anchor::kEnd ? 1 : 0.5;
    cairo_move_to(cairo_, label.at.x - extents.x_advance * part, label.at.y);
    cairo_show_text(cairo_, label.text.c_str());
  }

 private:
  void Colour(const std::string& colour) {
    const long rgb = std::strtol(colour.c_str() + 1, nullptr, 16);
    const auto part = [rgb](int shift) { return static_cast<double>((rgb >> shift) & 255) / 255; };
    cairo_set_source_rgb(cairo_, part(16), part(8), part(0));
  }

  cairo_t* cairo_;
};

}  // namespace

Status WritePng(const Picture& picture, double scale, const std::string& path) {
  const double width = std::ceil(picture.width * scale);
  const double height = std::ceil(picture.height * scale);
  if (width > kMostPixels || height > kMostPixels) {
    return InvalidUsage(
        "the picture would have {} × {} pixels; {} a side are possible, SVG has no "
        "such limit",
        width, height, kMostPixels);
  }
  const std::unique_ptr<cairo_surface_t, decltype(&cairo_surface_destroy)> surface(
      cairo_image_surface_create(CAIRO_FORMAT_RGB24, static_cast<int>(width),
                                 static_cast<int>(height)),
      cairo_surface_destroy);
  const std::unique_ptr<cairo_t, decltype(&cairo_destroy)> cairo(cairo_create(surface.get()),
                                                                 cairo_destroy);
  cairo_set_source_rgb(cairo.get(), 1, 1, 1);
  cairo_paint(cairo.get());
  CairoPainter painter(cairo.get(), scale);
  for (const topology::Shape& shape : picture.shapes) std::visit(painter, shape);
  const cairo_status_t status = cairo_surface_write_to_png(surface.get(), path.c_str());
  if (status == CAIRO_STATUS_SUCCESS) return Status::Ok();
  return SystemError("{} could not be written: {}", path, cairo_status_to_string(status));
}

}  // namespace tutti::tools::topo

#else

namespace tutti::tools::topo {

Status WritePng(const topology::Picture& /*picture*/, double /*scale*/,
                const std::string& /*path*/) {
  return InvalidUsage("this build has no PNG: cairo was not there; write SVG instead");
}

}  // namespace tutti::tools::topo

#endif
