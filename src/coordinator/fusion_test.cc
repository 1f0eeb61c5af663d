#include "coordinator/fusion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace tutti::coordinator {
namespace {

using ::testing::ElementsAre;

Response Of(int64_t floats, ElementType type = ElementType::kFloat32, const std::string& group = "",
            OpKind kind = OpKind::kAllreduce) {
  const auto agreement = std::make_shared<Agreement>();
  agreement->request.kind = kind;
  agreement->request.type = type;
  agreement->request.shape = {floats};
  agreement->request.group = group;
  Response response;
  response.agreed = agreement;
  return response;
}

void Change(Response& response, const std::function<void(Agreement&)>& change) {
  const auto agreement = std::make_shared<Agreement>(response.agreement());
  change(*agreement);
  response.agreed = agreement;
}

std::vector<Response> List(Response a, Response b, Response c, Response d) {
  std::vector<Response> list;
  list.push_back(std::move(a));
  list.push_back(std::move(b));
  list.push_back(std::move(c));
  list.push_back(std::move(d));
  return list;
}

TEST(FusionTest, AlikeTensorsShareABatchUpToTheThreshold) {
  const auto list = List(Of(10), Of(10), Of(10), Of(10));
  EXPECT_THAT(Fuse(list, {.threshold_bytes = 80}),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_THAT(Fuse(list, {.threshold_bytes = 160}), ElementsAre(ElementsAre(0, 1, 2, 3)));
  EXPECT_EQ(Fuse(list, {.threshold_bytes = 0}).size(), 4u);
}

TEST(FusionTest, LooksPastWhatDoesNotMatch) {
  const auto other = [] { return Of(10, ElementType::kFloat64); };
  EXPECT_THAT(Fuse(List(Of(10), other(), Of(10), other()), {.threshold_bytes = 200}),
              ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
  // Not past more than the threshold.
  EXPECT_THAT(
      Fuse(List(Of(10), Of(60, ElementType::kFloat64), Of(10), Of(10)), {.threshold_bytes = 200}),
      ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2, 3)));
}

TEST(FusionTest, OperatorScaleAndKindKeepApart) {
  auto list = List(Of(1), Of(1), Of(1), Of(1, ElementType::kFloat32, "", OpKind::kBroadcast));
  Change(list[1], [](Agreement& a) { a.request.op = ReduceOp::kMax; });
  Change(list[2], [](Agreement& a) { a.request.prescale = 2; });
  EXPECT_EQ(Fuse(list, {}).size(), 4u);
}

TEST(FusionTest, GroupsStayWholeBeyondTheThreshold) {
  const auto member = [] { return Of(10, ElementType::kFloat32, "g"); };
  EXPECT_THAT(Fuse(List(member(), Of(10), member(), member()), {.threshold_bytes = 80}),
              ElementsAre(ElementsAre(0, 2, 3), ElementsAre(1)));
  EXPECT_THAT(Fuse(List(member(), Of(10), member(), Of(10)),
                   {.threshold_bytes = 1000, .fuse_groups = false}),
              ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
}

TEST(FusionTest, AllgathersCountByTheirResults) {
  auto list = List(Of(1), Of(1), Of(1), Of(1));
  for (Response& response : list) {
    Change(response, [](Agreement& a) {
      a.request.kind = OpKind::kAllgather;
      a.first_dims = {5, 5};
    });
  }
  EXPECT_THAT(Fuse(list, {.threshold_bytes = 80}),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
}

TEST(FusionTest, FailedTensorsAreLeftOut) {
  auto list = List(Of(1), Of(1), Of(1), Of(1));
  list[2].error = "no";
  EXPECT_THAT(Fuse(list, {}), ElementsAre(ElementsAre(0, 1, 3)));
}

}  // namespace
}  // namespace tutti::coordinator
