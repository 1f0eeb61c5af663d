// Tests every parser of outside bytes: encoded values survive, and 100,000 mutations of valid texts
// do no harm.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "launch/testing/fuzz_targets.h"

namespace tutti::launch {
namespace {

using testing::HasSubstr;

MeetingAnswer SomeAnswer() {
  MeetingAnswer answer;
  answer.value = std::string("\0id", 3);
  answer.places = SettlePlaces({{"a"}, {"b"}, {"a"}});
  return answer;
}

Invitation SomeInvitation() {
  Invitation invitation;
  for (size_t i = 0; i < invitation.key.size(); ++i) invitation.key[i] = static_cast<uint8_t>(i);
  invitation.port = 4711;
  invitation.addresses = {"10.0.0.1", "fd00::1", "127.0.0.1"};
  return invitation;
}

TEST(MeetingWire, AnswersSurviveEncodingAndParsing) {
  const auto back = ParseAnswer(EncodeAnswer(SomeAnswer()), 3);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->value, SomeAnswer().value);
  EXPECT_EQ(back->places, SomeAnswer().places);
  EXPECT_FALSE(ParseAnswer(EncodeAnswer(SomeAnswer()), 2).ok());
  const auto failure = ParseAnswer(EncodeFailure("rank 2 did not\narrive"), 3);
  ASSERT_FALSE(failure.ok());
  // The sentence ends up on a terminal.
  EXPECT_EQ(failure.status().message(), "rank 0 says: rank 2 did not?arrive");
}

TEST(MeetingWire, InvitationsSurviveEncodingAndParsing) {
  const auto back = ParseInvitation(EncodeInvitation(SomeInvitation()));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->key, SomeInvitation().key);
  EXPECT_EQ(back->port, 4711);
  EXPECT_EQ(back->addresses, SomeInvitation().addresses);
  EXPECT_FALSE(ParseInvitation("").ok());
}

TEST(MeetingWire, LongNamesOfMachinesStayDifferent) {
  const std::string common(300, 'm');
  const auto one = ParseResidence(EncodeResidence({common + "1", 3, 4}));
  const auto two = ParseResidence(EncodeResidence({common + "2", -1, -1}));
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_NE(one->machine, two->machine);
  EXPECT_EQ(one->local_rank, 3);
  EXPECT_EQ(one->local_size, 4);
  EXPECT_EQ(two->local_rank, -1);
  EXPECT_EQ(two->local_size, -1);
  EXPECT_EQ(ParseResidence(EncodeResidence({"node7", 0, 1}))->machine, "node7");
}

std::string AsText(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A failure prints the seed; the n-th mutation of a seed is always the same.
TEST(Parsers, SurviveSeededMutations) {
  const std::vector<std::string> seeds = {
      "RANK=1\nWORLD_SIZE=4\nMASTER_ADDR=node7\nMASTER_PORT=29500\nLOCAL_RANK=1\n"
      "LOCAL_WORLD_SIZE=2\nTORCHELASTIC_USE_AGENT_STORE=True",
      "SLURM_PROCID=2\nSLURM_STEP_NUM_TASKS=3\nSLURM_STEP_ID=1\nSLURM_JOB_ID=77\n"
      "SLURM_STEP_NODELIST=n[07-12,20]x,m\nSLURM_STEP_TASKS_PER_NODE=1(x2),1\nSLURM_NODEID=1\n"
      "SLURM_LOCALID=0\nTUTTI_INIT_TIMEOUT_S=3",
      "PMI_RANK=1\nPMI_SIZE=2\nPMI_FD=7\nMPI_LOCALRANKID=1\nMPI_LOCALNRANKS=2",
      "OMPI_COMM_WORLD_RANK=1\nOMPI_COMM_WORLD_SIZE=2\nTUTTI_ADDR=[fd00::1]:777",
      "n[07-12,20]x,m",
      "4(x2),3,2(x16)",
      "cmd=get_result rc=0 msg=success value=00ff10",
      "00ff10",
      AsText(EncodeClaimHello({{1, 2}, 3, EncodeResidence({"node7/boot", 0, 2})})),
      EncodeResidence({"node7", 1, 2}),
      EncodeAnswer(SomeAnswer()),
      EncodeFailure("too late"),
      EncodeInvitation(SomeInvitation()),
  };
  for (size_t s = 0; s < seeds.size(); ++s) {
    SCOPED_TRACE(fmt::format("seed {}", s));
    std::mt19937_64 random(s);
    fuzz::All(std::as_bytes(std::span(seeds[s])));
    for (int i = 0; i < 100'000 / static_cast<int>(seeds.size()); ++i) {
      std::string mutated = seeds[s];
      for (uint64_t changes = 1 + random() % 4; changes > 0 && !mutated.empty(); --changes) {
        const size_t at = random() % mutated.size();
        switch (random() % 4) {
          case 0:
            mutated[at] = static_cast<char>(random());
            break;
          case 1:
            mutated[at] = static_cast<char>(mutated[at] ^ (1 << (random() % 8)));
            break;
          case 2:
            mutated.resize(at);
            break;
          default:
            mutated.insert(at, random() % 9, random() % 2 == 0 ? '9' : '\n');
        }
      }
      fuzz::All(std::as_bytes(std::span(mutated)));
    }
  }
}

}  // namespace
}  // namespace tutti::launch
