#include "base/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>

namespace tutti {
namespace {

using ::testing::HasSubstr;

TEST(StatusTest, DefaultIsSuccess) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), Code::kOk);
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(sizeof(Status), sizeof(void*));
}

TEST(StatusTest, EveryMakerCarriesItsCodeAndSentence) {
  EXPECT_EQ(SystemError("x").code(), Code::kSystemError);
  EXPECT_EQ(InternalError("x").code(), Code::kInternalError);
  EXPECT_EQ(InvalidArgument("x").code(), Code::kInvalidArgument);
  EXPECT_EQ(InvalidUsage("x").code(), Code::kInvalidUsage);
  EXPECT_EQ(RemoteError("x").code(), Code::kRemoteError);
  EXPECT_EQ(Timeout("x").code(), Code::kTimeout);
  EXPECT_EQ(RemoteError("rank {} left {}", 3, "early").message(), "rank 3 left early");
}

TEST(StatusTest, CopiesAreIndependentAndMovesTransfer) {
  Status first = InvalidUsage("one");
  Status copy = first;
  copy = std::move(copy).Annotate("two");
  EXPECT_EQ(first.message(), "one");
  EXPECT_EQ(copy.message(), "two: one");
  EXPECT_EQ(copy.code(), Code::kInvalidUsage);
  const Status moved = std::move(first);
  EXPECT_EQ(moved.message(), "one");
  copy = Status::Ok();
  EXPECT_TRUE(copy.ok());
}

TEST(StatusTest, AnnotateLeavesSuccessAlone) { EXPECT_TRUE(Status::Ok().Annotate("x").ok()); }

TEST(StatusTest, ErrnoErrorNamesTheError) {
  const Status status = ErrnoError(ECONNREFUSED, "rank 1 cannot reach rank 2");
  EXPECT_EQ(status.code(), Code::kSystemError);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 cannot reach rank 2: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("(ECONNREFUSED)"));
  EXPECT_THAT(std::string(ErrnoError(99999, "x").message()), HasSubstr("unknown error"));
}

Result<std::unique_ptr<int>> Half(int value) {
  if (value % 2 != 0) return InvalidArgument("{} is odd", value);
  return std::make_unique<int>(value / 2);
}

Result<int> Quarter(int value) {
  TUTTI_ASSIGN(const auto half, Half(value));
  TUTTI_ASSIGN(const auto quarter, Half(*half));
  return *quarter;
}

Status CheckDivisible(int value, bool& reached_end) {
  TUTTI_TRY(Quarter(value).status());
  reached_end = true;
  return Status::Ok();
}

TEST(ResultTest, AssignPassesValuesAndReturnsFailures) {
  ASSERT_TRUE(Quarter(12).ok());
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(6).status().message(), "3 is odd");
  EXPECT_EQ(Quarter(5).status().code(), Code::kInvalidArgument);
}

TEST(ResultTest, TryReturnsTheFirstFailure) {
  bool reached_end = false;
  EXPECT_EQ(CheckDivisible(7, reached_end).message(), "7 is odd");
  EXPECT_FALSE(reached_end);
  EXPECT_TRUE(CheckDivisible(8, reached_end).ok());
  EXPECT_TRUE(reached_end);
}

TEST(ResultTest, MoveOnlyValuesMoveOut) {
  Result<std::unique_ptr<int>> result = Half(10);
  ASSERT_TRUE(result.ok());
  const std::unique_ptr<int> value = std::move(result).value();
  EXPECT_EQ(*value, 5);
}

}  // namespace
}  // namespace tutti
