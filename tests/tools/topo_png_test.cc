// The PNG of a picture has what the picture has, and nothing else.

#include <cairo.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <memory>

#include "topo/png.h"

// Tells the address sanitizer what fontconfig never frees.
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions();
const char* __lsan_default_suppressions() { return "leak:libfontconfig.so"; }

namespace tutti::tools::topo {
namespace {

TEST(WritePng, AMarkIsNotJoinedToTheLabelBefore) {
  Picture picture;
  picture.width = 200;
  picture.height = 100;
  picture.shapes.emplace_back(Label{.at = {10, 50}, .text = "a", .colour = "#000000"});
  picture.shapes.emplace_back(Mark{.points = {{180, 30}, {190, 50}, {180, 70}}, .fill = "#ff0000"});
  const std::string path = testing::TempDir() + "topo_png_test.png";
  const Status written = WritePng(picture, 1, path);
  ASSERT_TRUE(written.ok()) << written.message();
  const std::unique_ptr<cairo_surface_t, decltype(&cairo_surface_destroy)> surface(
      cairo_image_surface_create_from_png(path.c_str()), cairo_surface_destroy);
  std::remove(path.c_str());
  ASSERT_EQ(cairo_surface_status(surface.get()), CAIRO_STATUS_SUCCESS);
  const auto pixel = [&](int x, int y) {
    uint32_t colour = 0;
    std::memcpy(&colour,
                cairo_image_surface_get_data(surface.get()) +
                    y * cairo_image_surface_get_stride(surface.get()) + 4 * x,
                sizeof(colour));
    return colour & 0xffffff;
  };
  EXPECT_EQ(pixel(183, 50), 0xff0000u);
  EXPECT_EQ(pixel(150, 45), 0xffffffu);
}

}  // namespace
}  // namespace tutti::tools::topo
