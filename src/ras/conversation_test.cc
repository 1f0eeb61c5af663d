#include "ras/conversation.h"

#include <gtest/gtest.h>

#include <string>

namespace tutti::ras {
namespace {

// Returns the answer of a new conversation to all of the bytes.
std::string AnswerTo(std::string_view bytes) { return Conversation().Take(bytes); }

TEST(ConversationTest, AnswersAreNccls) {
  EXPECT_EQ(AnswerTo("CLIENT PROTOCOL 2\n"), "SERVER PROTOCOL 2\n");
  EXPECT_EQ(AnswerTo("client protocol 7\r\n"), "SERVER PROTOCOL 2\n");
  EXPECT_EQ(AnswerTo("TIMEOUT 5\n"), "OK\n");
  EXPECT_EQ(AnswerTo("TIMEOUT -1\n"), "ERROR: Invalid timeout value -1\n");
  EXPECT_EQ(AnswerTo("timeout 5s\n"), "ERROR: Invalid timeout value 5s\n");
  EXPECT_EQ(AnswerTo("SET FORMAT json\n"), "OK\n");
  EXPECT_EQ(AnswerTo("set format TEXT\n"), "OK\n");
  EXPECT_EQ(AnswerTo("SET FORMAT xml\n"), "ERROR: Invalid format xml\n");
  EXPECT_EQ(AnswerTo("MONITOR\n"), "OK\n");
  EXPECT_EQ(AnswerTo("MONITOR lifecycle,trace\n"), "OK\n");
  EXPECT_EQ(AnswerTo("MONITOR all,no\n"), "ERROR: Invalid event group 'no'\n");
  EXPECT_EQ(AnswerTo("HELLO\n"), "ERROR: Unknown command HELLO\n");
  EXPECT_EQ(AnswerTo("\n"), "ERROR: Unknown command \n");
}

TEST(ConversationTest, KeepsWhatTheClientSays) {
  Conversation talk;
  EXPECT_EQ(talk.timeout_s(), Conversation::kDefaultTimeout);
  EXPECT_EQ(talk.Take("TIMEOUT 7\nSET FORMAT json\nMONITOR\n"), "OK\nOK\nOK\n");
  EXPECT_EQ(talk.timeout_s(), 7);
  EXPECT_TRUE(talk.as_json());
  EXPECT_TRUE(talk.monitors());
  EXPECT_EQ(talk.state(), Conversation::State::kTalking);
  EXPECT_EQ(talk.Take("VERBOSE STATUS\nTIMEOUT 9\n"), "");
  EXPECT_EQ(talk.state(), Conversation::State::kStatus);
  EXPECT_TRUE(talk.verbose());
  EXPECT_EQ(talk.timeout_s(), 7);
  Conversation traces;
  traces.Take("MONITOR trace\nstatus\n");
  EXPECT_FALSE(traces.monitors());
  EXPECT_FALSE(traces.verbose());
  EXPECT_EQ(traces.state(), Conversation::State::kStatus);
}

TEST(ConversationTest, AMonitorWithoutRoomHearsSo) {
  Conversation talk;
  talk.set_may_monitor(false);
  EXPECT_EQ(talk.Take("MONITOR\nTIMEOUT 7\n"), "ERROR: Too many monitors\nOK\n");
  EXPECT_FALSE(talk.monitors());
}

TEST(ConversationTest, ACommandMayComeInPieces) {
  Conversation talk;
  EXPECT_EQ(talk.Take("CLIENT PRO"), "");
  EXPECT_EQ(talk.Take("TOCOL 2\nTIME"), "SERVER PROTOCOL 2\n");
  EXPECT_EQ(talk.Take("OUT 1\n"), "OK\n");
}

TEST(ConversationTest, ALineThatIsTooLongEndsTheConversation) {
  Conversation talk;
  talk.Take(std::string(Conversation::kMostLineBytes - 1, 'x'));
  EXPECT_EQ(talk.state(), Conversation::State::kTalking);
  talk.Take("x");
  EXPECT_EQ(talk.state(), Conversation::State::kOver);
}

TEST(ConversationTest, RepeatsNoControlBytes) {
  EXPECT_EQ(AnswerTo("\x1b[2J\x07\n"), "ERROR: Unknown command ?[2J?\n");
}

}  // namespace
}  // namespace tutti::ras
