#include "comm/topology_step.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "topology/machine_xml.h"

namespace tutti {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two processors with a NIC below each, the second NIC faster.
topology::Machine TwoNodes() {
  constexpr const char* kXml = R"(<system version="1">
  <cpu numaid="0" affinity="0000000f" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="17">
    <pci busid="0000:01:00.0" class="0x020000" link_speed="16.0 GT/s PCIe" link_width="16">
      <nic><net name="eth0" dev="0" speed="25000" port="0" guid="0x1" gdr="0"/></nic>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="000000f0" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="17">
    <pci busid="0000:81:00.0" class="0x020000" link_speed="16.0 GT/s PCIe" link_width="16">
      <nic><net name="eth1" dev="1" speed="25000" port="0" guid="0x2" gdr="0"/></nic>
    </pci>
  </cpu>
</system>)";
  auto machine = topology::ParseMachineXml(kXml, "two");
  EXPECT_TRUE(machine.ok()) << machine.status().message();
  return machine.ok() ? *machine : topology::Machine{};
}

HostQuestion Question(int rank, std::vector<int> ranks, std::vector<int> numas) {
  HostQuestion question;
  question.rank = rank;
  question.ranks = std::move(ranks);
  question.numas = std::move(numas);
  return question;
}

HostAnswer Ask(const HostQuestion& question, const Settings& settings = {}) {
  auto answer = AskTopology(settings, TwoNodes(), 7, question);
  EXPECT_TRUE(answer.ok()) << answer.status().message();
  return answer.ok() ? *answer : HostAnswer{};
}

// Returns how often a ring goes from one node to another.
int Crossings(const std::vector<int32_t>& order, const HostQuestion& question) {
  const auto numa = [&](int32_t rank) {
    const auto at = std::find(question.ranks.begin(), question.ranks.end(), rank);
    return question.numas[static_cast<size_t>(at - question.ranks.begin())];
  };
  int crossings = 0;
  for (size_t i = 0; i < order.size(); ++i)
    crossings += numa(order[i]) != numa(order[(i + 1) % order.size()]);
  return crossings;
}

TEST(AskTopologyTest, TheRingGoesToEachNodeOnce) {
  const HostQuestion question = Question(0, {0, 1, 2, 3, 4, 5}, {0, 1, 0, 1, 0, 1});
  const HostAnswer answer = Ask(question);
  EXPECT_EQ(answer.plain_since, "");
  EXPECT_THAT(answer.rings[0].order, ::testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(Crossings(answer.rings[0].order, question), 2)
      << ::testing::PrintToString(answer.rings[0].order);
}

TEST(AskTopologyTest, EachRankTakesTheNicOfItsNode) {
  HostQuestion question = Question(3, {3, 5}, {1, 0});
  question.other_hosts = true;
  question.nics = {{"eth0", true, 10000}, {"eth1", true, 10000}};
  EXPECT_EQ(Ask(question).nic, 1);
  question.rank = 5;
  const HostAnswer answer = Ask(question);
  EXPECT_EQ(answer.nic, 0);
  EXPECT_EQ(answer.nic_mbps, 25000u);  // The file has this speed.
}

TEST(AskTopologyTest, NicsThatAreNotUsableAreNotUsed) {
  HostQuestion question = Question(3, {3, 5}, {1, 0});
  question.other_hosts = true;
  question.nics = {{"eth0", true, 10000}, {"eth1", false, 10000}};
  EXPECT_EQ(Ask(question).nic, 0);
  // The network's numbers count, and not the numbers in the file.
  question.nics = {{"docker0", false, 10000}, {"eth1", true, 10000}, {"eth0", true, 10000}};
  EXPECT_EQ(Ask(question).nic, 1);
  question.rank = 5;
  EXPECT_EQ(Ask(question).nic, 2);
}

TEST(AskTopologyTest, RanksOfOneNodeShareItsEqualNics) {
  topology::Machine machine = TwoNodes();
  topology::PciFact nic = machine.cpus[1].pci[0];
  nic.bus_id += 0x1000;
  nic.nics[0].nets[0].name = "eth2";
  nic.nics[0].nets[0].guid = 3;
  machine.cpus[1].pci.push_back(nic);
  HostQuestion question = Question(0, {0, 1}, {1, 1});
  question.other_hosts = true;
  question.nics = {{"eth0", true, 10000}, {"eth1", true, 10000}, {"eth2", true, 10000}};
  std::vector<int32_t> nics;
  for (question.rank = 0; question.rank < 2; ++question.rank) {
    const auto answer = AskTopology({}, machine, 7, question);
    ASSERT_TRUE(answer.ok());
    nics.push_back(answer->nic);
  }
  EXPECT_THAT(nics, ::testing::UnorderedElementsAre(1, 2));
}

TEST(AskTopologyTest, ANodeThatIsHiddenHereStillHoldsItsRanks) {
  const HostQuestion question = Question(0, {0, 1, 2, 3}, {0, 5, 0, 5});
  const HostAnswer answer = Ask(question);
  EXPECT_EQ(answer.plain_since, "");
  EXPECT_EQ(Crossings(answer.rings[0].order, question), 2);
}

// Four GPUs on one processor, each at a PCIe port of its own with a NIC beside it. NVLinks join the
// GPUs to a ring that is not in the order of their addresses: 0, 2, 1, 3.
topology::Machine FourGpus() {
  std::string xml = R"(<system version="1">
  <cpu numaid="0" affinity="000000ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
)";
  const auto bus = [](int gpu) { return fmt::format("0000:{:02x}:00.0", 0x11 * (gpu + 1)); };
  const int next[] = {2, 3, 1, 0}, previous[] = {3, 2, 0, 1};
  for (int g = 0; g < 4; ++g) {
    xml += fmt::format(
        R"(<pci busid="0000:{:02x}:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
  <pci busid="{}" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
    <gpu dev="{}" sm="80" rank="{}" gdr="1">
      <nvlink target="{}" count="2" tclass="0x030200"/><nvlink target="{}" count="2" tclass="0x030200"/>
    </gpu>
  </pci>
  <pci busid="0000:{:02x}:00.0" class="0x020000" link_speed="16.0 GT/s PCIe" link_width="16">
    <nic><net name="eth{}" dev="{}" speed="100000" port="0" guid="{:#x}" gdr="1"/></nic>
  </pci>
</pci>
)",
        0x11 * (g + 1) - 1, bus(g), g, g, bus(next[g]), bus(previous[g]), 0x11 * (g + 1) + 1, g, g,
        g + 1);
  }
  auto machine = topology::ParseMachineXml(xml + "</cpu></system>", "four GPUs");
  EXPECT_TRUE(machine.ok()) << machine.status().message();
  return machine.ok() ? *machine : topology::Machine{};
}

HostQuestion QuestionOfGpus(int rank, std::vector<int> ranks) {
  HostQuestion question = Question(rank, std::move(ranks), {0, 0, 0, 0});
  for (uint64_t gpu = 0; gpu < 4; ++gpu) question.gpus.push_back(0x11 * (gpu + 1) << 12);
  question.channels = 8;
  return question;
}

// Expects rings that pass only along NVLinks. Ranks go by GPUs.
void ExpectNvlinksOnly(const HostAnswer& answer, const std::vector<int>& ranks) {
  const auto gpu_of = [&](int32_t rank) {
    return std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
  };
  ASSERT_FALSE(answer.rings.empty());
  for (const HostRing& ring : answer.rings) {
    ASSERT_EQ(ring.order.size(), ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i) {
      const auto from = gpu_of(ring.order[i]), to = gpu_of(ring.order[(i + 1) % ranks.size()]);
      EXPECT_NE(from / 2, to / 2) << ::testing::PrintToString(ring.order);
    }
  }
}

TEST(AskTopologyTest, RingsOfGpusFollowTheLinks) {
  const std::vector<int> ranks = {1, 4, 6, 7};
  const auto answer = AskTopology({}, FourGpus(), 7, QuestionOfGpus(4, ranks));
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ(answer->plain_since, "");
  ExpectNvlinksOnly(*answer, ranks);
  EXPECT_GT(answer->rings.size(), 1u);  // both directions of the links
}

TEST(AskTopologyTest, GpusOfSeveralHostsUseEveryNic) {
  std::vector<bool> used(4);
  for (int rank = 0; rank < 4; ++rank) {
    HostQuestion question = QuestionOfGpus(rank, {0, 1, 2, 3});
    question.other_hosts = true;
    for (int nic = 0; nic < 4; ++nic)
      question.nics.push_back({fmt::format("eth{}", nic), true, 100000});
    const auto answer = AskTopology({}, FourGpus(), 7, question);
    ASSERT_TRUE(answer.ok()) << answer.status().message();
    EXPECT_EQ(answer->nic, rank);
    EXPECT_EQ(answer->near_nics, uint64_t{1} << rank) << "the others are beyond the processor";
    for (const HostRing& ring : answer->rings) used[static_cast<size_t>(ring.rail_out)] = true;
  }
  EXPECT_THAT(used, ElementsAre(true, true, true, true));
}

// Each GPU has a NIC beside it, behind the same bridge.
TEST(AskTopologyTest, NicsReachTheMemoryOfGpusAsTheRulesAllow) {
  HostQuestion question = QuestionOfGpus(2, {0, 1, 2, 3});
  question.other_hosts = true;
  for (int nic = 0; nic < 4; ++nic) {
    OfferedNic& offered = question.nics.emplace_back();
    offered.name = fmt::format("eth{}", nic);
    offered.gpu_memory = true;
  }
  EXPECT_TRUE(TopologyMatters({}, question));
  const auto ask = [&](const Settings& settings) {
    const auto answer = AskTopology(settings, FourGpus(), 7, question);
    EXPECT_TRUE(answer.ok()) << answer.status().message();
    return std::pair(answer->nic_writes_gpu, answer->nic_reads_gpu);
  };
  EXPECT_EQ(ask({}), std::pair(true, true));
  Settings settings;
  settings.net_gdr_read = "0";
  EXPECT_EQ(ask(settings), std::pair(true, false));
  settings.net_gdr_level = "LOC";
  EXPECT_EQ(ask(settings), std::pair(false, false));
  for (OfferedNic& nic : question.nics) nic.gpu_memory = false;
  EXPECT_EQ(ask({}), std::pair(false, false))
      << "the file says that they can, the network does not";
}

TEST(AskTopologyTest, GpusThatAreNotShownCountAsRanksOfTheHost) {
  HostQuestion question = QuestionOfGpus(0, {0, 1, 2, 3});
  question.gpus[2] = 0x99000;
  question.channels = 1;
  const auto answer = AskTopology({}, FourGpus(), 7, question);
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  ASSERT_EQ(answer->rings.size(), 1u);
  EXPECT_THAT(answer->rings[0].order, ::testing::UnorderedElementsAre(0, 1, 2, 3));
}

// As many ranks as a host of today has processors, by turns on two nodes; and the greatest number
// at which the machine is looked at.
TEST(AskTopologyTest, ManyRanksComeIntoOrder) {
  for (const int count : {256, 1024}) {
    HostQuestion question = Question(0, {}, {});
    for (int r = 0; r < count; ++r) {
      question.ranks.push_back(r);
      question.numas.push_back(r % 2);
    }
    question.other_hosts = true;
    question.nics = {{"eth0", true, 10000}, {"eth1", true, 10000}};
    const HostAnswer answer = Ask(question);
    EXPECT_EQ(answer.plain_since, "") << count;
    EXPECT_EQ(Crossings(answer.rings[0].order, question), 2) << count;
  }
}

TEST(AskTopologyTest, WithoutARingTheOrderIsThatOfNumbersAndSaysWhy) {
  HostQuestion question = Question(0, {0, 1, 2}, {0, 1, 0});
  question.other_hosts = true;
  question.nics = {{"not_in_the_file", true, 10000}};
  const HostAnswer answer = Ask(question);
  EXPECT_NE(answer.plain_since, "");
  EXPECT_THAT(answer.rings[0].order, ElementsAre(0, 1, 2));
  EXPECT_EQ(answer.nic, 0);
  EXPECT_EQ(answer.nic_mbps, 10000u);
}

TEST(AskTopologyTest, AFileOfChannelsThatCannotBeReadIsAnError) {
  Settings settings;
  settings.graph_file = "/nowhere/graph.xml";
  const auto answer = AskTopology(settings, TwoNodes(), 7, Question(0, {0, 1, 2}, {0, 1, 0}));
  ASSERT_FALSE(answer.ok());
  EXPECT_THAT(answer.status().message(), HasSubstr("NCCL_GRAPH_FILE"));
}

TEST(TopologyMattersTest, WhereAnythingCanBeChosen) {
  const Settings none;
  HostQuestion question = Question(0, {0, 1, 2}, {0, 0, 0});
  EXPECT_FALSE(TopologyMatters(none, question));
  question.nics = {{"eth0", true, 10000}, {"docker0", false, 10000}};
  EXPECT_FALSE(TopologyMatters(none, question));
  question.nics[1].usable = true;
  EXPECT_TRUE(TopologyMatters(none, question));
  EXPECT_TRUE(TopologyMatters(none, Question(0, {0, 1, 2}, {0, 1, 0})));
  Settings file;
  file.topo_file = "machine.xml";
  EXPECT_TRUE(TopologyMatters(file, Question(0, {0, 1}, {0, 0})));
}

// Six ranks on two hosts by turns: 0, 2, 4 and 1, 3, 5.
class JoinAnswersTest : public ::testing::Test {
 protected:
  JoinAnswersTest() : peers_(6) {
    for (int r = 0; r < 6; ++r) {
      HostAnswer answer;
      answer.machine = 7;
      answer.rings = {
          HostRing{r % 2 == 0 ? std::vector<int32_t>{4, 0, 2} : std::vector<int32_t>{1, 5, 3}}};
      answers_.push_back(answer);
      peers_[static_cast<size_t>(r)].host_hash = static_cast<uint64_t>(1 + r % 2);
    }
    Write();
  }
  void Write() {
    messages_.clear();
    for (size_t r = 0; r < 6; ++r) messages_.push_back(WriteAnswer(answers_[r], r < 2));
  }
  Result<JobAnswer> Join() const { return JoinAnswers(messages_, first_ranks_, peers_); }
  std::string Refusal() const {
    const auto job = Join();
    return job.ok() ? "accepted" : std::string(job.status().message());
  }

  const std::vector<int> first_ranks_ = {0, 1, 0, 1, 0, 1};
  std::vector<PeerInfo> peers_;
  std::vector<HostAnswer> answers_;
  std::vector<Bytes> messages_;
};

TEST_F(JoinAnswersTest, TheRingEntersAndLeavesEachHostOnce) {
  const auto job = Join();
  ASSERT_TRUE(job.ok()) << job.status().message();
  EXPECT_THAT(job->rings[0], ElementsAre(4, 0, 2, 1, 5, 3));
  EXPECT_FALSE(job->disagreement);
  EXPECT_THAT(job->see_another, ElementsAre());
}

TEST_F(JoinAnswersTest, RanksSendThroughOneAnotherAsFarAsAllDo) {
  for (HostAnswer& answer : answers_) answer.pxn_level = 2;
  answers_[1].near_nics = 5;
  Write();
  EXPECT_EQ(Join().value().pxn_level, 2);
  EXPECT_EQ(Join().value().near_nics[1], 5u);
  EXPECT_FALSE(Join().value().nics_read_gpus);
  answers_[3].pxn_level = 1;
  answers_[2].nic_reads_gpu = true;
  Write();
  EXPECT_EQ(Join().value().pxn_level, 1);
  EXPECT_TRUE(Join().value().nics_read_gpus);
  answers_[0].pxn_level = 0;
  Write();
  EXPECT_EQ(Join().value().pxn_level, 0);
}

// Hosts have as many rings as the host with fewest. Each ring goes on through the next host on the
// rail by which it left the host before.
TEST_F(JoinAnswersTest, RingsOfSeveralChannelsKeepToTheirRails) {
  answers_[0].rings = {{{4, 0, 2}, 0, 0}, {{2, 4, 0}, 1, 1}, {{0, 4, 2}, 2, 2}};
  answers_[1].rings = {{{1, 5, 3}, 1, 1}, {{3, 5, 1}, 0, 0}};
  for (size_t r = 2; r < 6; ++r) answers_[r].rings = answers_[r % 2].rings;
  Write();
  const auto job = Join();
  ASSERT_TRUE(job.ok()) << job.status().message();
  EXPECT_THAT(job->rings,
              ElementsAre(ElementsAre(4, 0, 2, 3, 5, 1), ElementsAre(2, 4, 0, 1, 5, 3)));
  EXPECT_FALSE(job->disagreement);
}

// The cost model counts with the slowest known host.
TEST_F(JoinAnswersTest, TheSlowestHostCounts) {
  answers_[0].intra_mbs = 9000;
  answers_[0].inter_mbs = 2500;
  answers_[1].intra_mbs = 6000;
  answers_[1].inter_mbs = 0;
  answers_[2].intra_mbs = 1;  // not a host's first rank
  Write();
  const auto job = Join();
  ASSERT_TRUE(job.ok()) << job.status().message();
  EXPECT_EQ(job->intra_mbs, 6000u);
  EXPECT_EQ(job->inter_mbs, 2500u);
}

// All ranks plan with the farthest host that any rank knows.
TEST_F(JoinAnswersTest, TheFarthestHostCounts) {
  answers_[2].away_us = 40;
  answers_[5].away_us = 1020;
  Write();
  const auto job = Join();
  ASSERT_TRUE(job.ok()) << job.status().message();
  EXPECT_EQ(job->away_us, 1020u);
}

TEST_F(JoinAnswersTest, OneMachineAndTwoAnswersIsADisagreement) {
  answers_[3].rings[0].order = {1, 3, 5};
  Write();
  const auto job = Join();
  ASSERT_TRUE(job.ok()) << job.status().message();
  ASSERT_TRUE(job->disagreement);
  EXPECT_EQ(job->disagreement->rank, 3);
  EXPECT_EQ(job->disagreement->first_rank, 1);
  const auto theirs = ReadOrder(WriteOrder(answers_[3].rings[0].order), 6);
  ASSERT_TRUE(theirs.ok());
  EXPECT_THAT(
      NameDifference(*job->disagreement, *theirs, answers_[1].rings[0].order, peers_).message(),
      HasSubstr("place 1 is rank 5 for the one and rank 3 for the other"));
}

TEST_F(JoinAnswersTest, WhoSeesAnotherMachineTakesTheFirstRanksAnswer) {
  answers_[3].rings[0].order = {1, 3, 5};
  answers_[3].machine = 8;
  Write();
  const auto job = Join();
  ASSERT_TRUE(job.ok());
  EXPECT_FALSE(job->disagreement);
  EXPECT_THAT(job->see_another, ElementsAre(3));
  EXPECT_THAT(job->rings[0], ElementsAre(4, 0, 2, 1, 5, 3));
}

TEST_F(JoinAnswersTest, AFailureIsEverybodys) {
  messages_[4] = WriteFailure(InvalidUsage("NCCL_TOPO_FILE: no such file"));
  EXPECT_THAT(Refusal(), HasSubstr("rank 4"));
  EXPECT_THAT(Refusal(), HasSubstr("NCCL_TOPO_FILE: no such file"));
}

TEST_F(JoinAnswersTest, HostileAnswersAreRefused) {
  const std::vector<Bytes> sound = messages_;
  const std::vector<std::pair<std::vector<int32_t>, const char*>> kOrders = {
      {{4, 0, 4}, "not one over the 3 ranks"},
      {{4, 0, 1}, "not one over the 3 ranks"},
      {{4, 0, -1}, "not one over the 3 ranks"},
      {{4, 0, 1 << 30}, "not one over the 3 ranks"},
      {{4, 0}, "16 bytes long, for 3 ranks"},
      {{4, 0, 2, 1}, "24 bytes long, for 3 ranks"},
      {{}, "8 bytes long"}};
  for (const auto& [order, sentence] : kOrders) {
    messages_ = sound;
    HostAnswer answer = answers_[0];
    answer.rings[0].order = order;
    messages_[0] = WriteAnswer(answer, true);
    EXPECT_THAT(Refusal(), HasSubstr(sentence));
  }
  messages_ = sound;
  messages_[2] = messages_[0];
  EXPECT_THAT(Refusal(), HasSubstr("offers the ring of its host"));
  messages_ = sound;
  messages_[0] = messages_[2];
  EXPECT_THAT(Refusal(), HasSubstr("keeps back the ring of its host"));
  messages_ = sound;
  messages_[0].back() ^= std::byte{1};
  EXPECT_THAT(Refusal(), HasSubstr("not the one that it vouches for"));
}

// Cut anywhere or with any byte changed, a message is refused or still a ring over the job.
TEST_F(JoinAnswersTest, DamagedAnswersDoNoHarm) {
  const std::vector<Bytes> sound = messages_;
  const auto expect_sound = [&] {
    const auto job = Join();
    if (!job.ok()) return;
    std::vector<int> sorted = job->rings[0];
    std::sort(sorted.begin(), sorted.end());
    EXPECT_THAT(sorted, ElementsAre(0, 1, 2, 3, 4, 5));
  };
  for (const size_t rank : {0u, 2u}) {
    for (size_t at = 0; at < sound[rank].size(); ++at) {
      messages_ = sound;
      messages_[rank].resize(at);
      EXPECT_NE(Refusal(), "accepted");
      for (const int bit : {0, 3, 7}) {
        messages_ = sound;
        messages_[rank][at] ^= std::byte(1 << bit);
        expect_sound();
      }
    }
    messages_ = sound;
    messages_[rank].push_back(std::byte{0});
    EXPECT_NE(Refusal(), "accepted");
  }
}

TEST(ReadOrderTest, IsBounded) {
  EXPECT_FALSE(ReadOrder(Bytes(7), 6).ok());
  EXPECT_FALSE(ReadOrder(Bytes(4 * (6 * 64 + 1)), 6).ok());
  EXPECT_TRUE(ReadOrder(Bytes(24), 6).ok());
}

}  // namespace
}  // namespace tutti
