#include "topo/png.h"

#ifdef TUTTI_HAVE_CAIRO

#include <cairo.h>
#include <dlfcn.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <numbers>

namespace tutti::tools::topo {
namespace {

// The most pixels of a side; cairo's own limit is a little higher.
constexpr double kMostPixels = 30'000;

// Every function of cairo that is used here, without the prefix "cairo_".
// clang-format off
#define TUTTI_CAIRO_FUNCTIONS(USE) \
  USE(arc) USE(close_path) USE(create) USE(curve_to) USE(destroy) USE(fill) USE(fill_preserve) \
  USE(image_surface_create) USE(line_to) USE(move_to) USE(new_path) USE(new_sub_path) \
  USE(paint) USE(scale) USE(select_font_face) USE(set_dash) USE(set_font_size) \
  USE(set_line_cap) USE(set_line_join) USE(set_line_width) USE(set_source_rgb) USE(show_text) \
  USE(status_to_string) USE(stroke) USE(surface_destroy) USE(surface_write_to_png) \
  USE(text_extents)
// clang-format on

// Holds cairo as found at run time: the program also starts on machines without cairo.
struct CairoLibrary {
#define TUTTI_MEMBER(name) decltype(&cairo_##name) name = nullptr;
  TUTTI_CAIRO_FUNCTIONS(TUTTI_MEMBER)
#undef TUTTI_MEMBER
};

// Stores the address of a function; false where the library does not have the function.
template <typename Function>
bool Find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

// Returns cairo, which stays loaded until the process ends.
Result<CairoLibrary> LoadCairo() {
  void* const handle = dlopen("libcairo.so.2", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return InvalidUsage("PNG needs the library cairo, which is not there ({}); write SVG instead",
                        dlerror());
  }
  CairoLibrary library;
  bool complete = true;
#define TUTTI_FIND(name) complete = Find(handle, "cairo_" #name, library.name) && complete;
  TUTTI_CAIRO_FUNCTIONS(TUTTI_FIND)
#undef TUTTI_FIND
  if (!complete) return InvalidUsage("libcairo.so.2 lacks functions; write SVG instead");
  return library;
}

class CairoPainter {
 public:
  CairoPainter(const CairoLibrary& library, cairo_t* cairo, double scale)
      : library_(library), cairo_(cairo) {
    library_.scale(cairo_, scale, scale);
  }

  void operator()(const Box& box) {
    const double quarter = std::numbers::pi / 2;
    const double right = box.corner.x + box.width - box.radius;
    const double bottom = box.corner.y + box.height - box.radius;
    const double left = box.corner.x + box.radius;
    const double top = box.corner.y + box.radius;
    library_.new_sub_path(cairo_);
    library_.arc(cairo_, right, top, box.radius, -quarter, 0);
    library_.arc(cairo_, right, bottom, box.radius, 0, quarter);
    library_.arc(cairo_, left, bottom, box.radius, quarter, 2 * quarter);
    library_.arc(cairo_, left, top, box.radius, 2 * quarter, 3 * quarter);
    library_.close_path(cairo_);
    if (!box.fill.empty()) {
      Colour(box.fill);
      library_.fill_preserve(cairo_);
    }
    if (!box.outline.empty()) {
      Colour(box.outline);
      library_.set_line_width(cairo_, 1);
      library_.stroke(cairo_);
    }
    library_.new_path(cairo_);
  }

  void operator()(const Curve& curve) {
    Colour(curve.colour);
    library_.set_line_width(cairo_, curve.width);
    library_.set_line_join(cairo_, CAIRO_LINE_JOIN_ROUND);
    library_.set_line_cap(cairo_, CAIRO_LINE_CAP_ROUND);
    constexpr double kDashes[] = {5, 5};
    library_.set_dash(cairo_, kDashes, curve.dashed ? 2 : 0, 0);
    const auto& p = curve.points;
    library_.move_to(cairo_, p[0].x, p[0].y);
    if (curve.bent) {
      library_.curve_to(cairo_, p[1].x, p[1].y, p[2].x, p[2].y, p[3].x, p[3].y);
    } else {
      for (const Point& point : p) library_.line_to(cairo_, point.x, point.y);
    }
    library_.stroke(cairo_);
    library_.set_dash(cairo_, kDashes, 0, 0);
  }

  void operator()(const Mark& mark) {
    Colour(mark.fill);
    library_.new_path(cairo_);  // A label leaves its end as the current point.
    for (const Point& point : mark.points) library_.line_to(cairo_, point.x, point.y);
    library_.close_path(cairo_);
    library_.fill(cairo_);
  }

  void operator()(const Label& label) {
    Colour(label.colour);
    library_.select_font_face(cairo_, "DejaVu Sans", CAIRO_FONT_SLANT_NORMAL,
                              label.bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    library_.set_font_size(cairo_, label.size);
    cairo_text_extents_t extents;
    library_.text_extents(cairo_, label.text.c_str(), &extents);
    const double part = label.anchor == Anchor::kStart ? 0 : label.anchor == Anchor::kEnd ? 1 : 0.5;
    library_.move_to(cairo_, label.at.x - extents.x_advance * part, label.at.y);
    library_.show_text(cairo_, label.text.c_str());
  }

 private:
  void Colour(const std::string& colour) {
    const long rgb = std::strtol(colour.c_str() + 1, nullptr, 16);
    const auto part = [rgb](int shift) { return static_cast<double>((rgb >> shift) & 255) / 255; };
    library_.set_source_rgb(cairo_, part(16), part(8), part(0));
  }

  const CairoLibrary& library_;
  cairo_t* const cairo_;
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
  TUTTI_ASSIGN(const CairoLibrary library, LoadCairo());
  const std::unique_ptr<cairo_surface_t, decltype(library.surface_destroy)> surface(
      library.image_surface_create(CAIRO_FORMAT_RGB24, static_cast<int>(width),
                                   static_cast<int>(height)),
      library.surface_destroy);
  const std::unique_ptr<cairo_t, decltype(library.destroy)> cairo(library.create(surface.get()),
                                                                  library.destroy);
  library.set_source_rgb(cairo.get(), 1, 1, 1);
  library.paint(cairo.get());
  CairoPainter painter(library, cairo.get(), scale);
  for (const Shape& shape : picture.shapes) std::visit(painter, shape);
  const cairo_status_t status = library.surface_write_to_png(surface.get(), path.c_str());
  if (status == CAIRO_STATUS_SUCCESS) return Status::Ok();
  return SystemError("{} could not be written: {}", path, library.status_to_string(status));
}

}  // namespace tutti::tools::topo

#else

namespace tutti::tools::topo {

Status WritePng(const Picture& /*picture*/, double /*scale*/, const std::string& /*path*/) {
  return InvalidUsage("this build has no PNG: cairo's headers were not there; write SVG instead");
}

}  // namespace tutti::tools::topo

#endif
