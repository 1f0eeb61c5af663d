#include "base/exceptions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

namespace tutti {
namespace {

TEST(ExceptionsTest, BecomeStatuses) {
  EXPECT_TRUE(WithoutExceptions([] { return Status::Ok(); }).ok());
  EXPECT_EQ(WithoutExceptions([] { return Timeout("late"); }).code(), Code::kTimeout);
  EXPECT_EQ(WithoutExceptions([]() -> Status { throw std::bad_alloc(); }).code(),
            Code::kSystemError);
  EXPECT_EQ(WithoutExceptions([]() -> Status { throw std::length_error("long"); }).code(),
            Code::kSystemError);
  const Status other = WithoutExceptions([]() -> Status { throw std::runtime_error("strange"); });
  EXPECT_EQ(other.code(), Code::kInternalError);
  EXPECT_THAT(other.message(), ::testing::HasSubstr("strange"));
  EXPECT_EQ(WithoutExceptions([]() -> Status { throw 7; }).code(), Code::kInternalError);
}

}  // namespace
}  // namespace tutti
