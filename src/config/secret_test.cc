#include "config/secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace tutti {
namespace {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

constexpr const char* kOpenMpi = "OMPI_MCA_orte_precondition_transports";
// Such a text is of mpirun.
constexpr const char* kOfMpirun = "0b5e3c7790f1a2d4-5c1d9be6a7f00384";
constexpr const char* kHorovod = "_HOROVOD_SECRET_KEY";

// A home folder of its own for each test.
class SecretTest : public testing::Test {
 protected:
  SecretTest() {
    std::string name = testing::TempDir() + "tutti-secret-XXXXXX";
    home_ = mkdtemp(name.data());
    std::filesystem::create_directory(home_ + "/.tutti");
  }
  ~SecretTest() override { std::filesystem::remove_all(home_); }

  std::string path() const { return home_ + "/.tutti/key"; }

  void Write(const std::string& text, mode_t mode = 0600) const {
    std::ofstream(path()) << text;
    ASSERT_EQ(chmod(path().c_str(), mode), 0);
  }

  // The program began with `variables` and those of `later` came afterwards.
  Result<Secret> Find(Variables variables = {}, const Variables& later = {}) const {
    variables.emplace("HOME", home_);
    Variables now = later;
    now.insert(variables.begin(), variables.end());
    return FindSecret(Reading(now), [&] { return Reading(variables); });
  }

  std::string Refusal(const Variables& variables = {}) const {
    const Result<Secret> secret = Find(variables);
    return secret.ok() ? "found: " + secret->text : std::string(secret.status().message());
  }

 private:
  static Environment Reading(const Variables& variables) {
    return [&variables](const char* name) -> const char* {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    };
  }

  std::string home_;
};

TEST_F(SecretTest, TheFirstSourceCounts) {
  EXPECT_EQ(Find()->text, "");
  EXPECT_EQ(Find()->source, "");
  Write("of the file\n");
  EXPECT_EQ(Find()->text, "of the file");
  EXPECT_EQ(Find()->source, path());
  Variables variables = {{kHorovod, "of Horovod"}};
  EXPECT_EQ(Find(variables)->text, "of Horovod");
  variables[kOpenMpi] = kOfMpirun;
  variables["OMPI_COMM_WORLD_RANK"] = "0";
  EXPECT_EQ(Find(variables)->text, kOfMpirun);
  EXPECT_EQ(Find(variables)->source, kOpenMpi);
  variables["TUTTI_COMM_KEY"] = "";
  EXPECT_EQ(Find(variables)->text, kOfMpirun);
  variables["TUTTI_COMM_KEY"] = "of a person";
  EXPECT_EQ(Find(variables)->text, "of a person");
  EXPECT_EQ(Find(variables)->source, "TUTTI_COMM_KEY");
}

// MPI_Init sets the variable in a process without a launcher, and under `srun --mpi=pmix`.
TEST_F(SecretTest, OnlyMpirunsTextIsASecretOfOpenMpis) {
  const Variables rank = {{"OMPI_COMM_WORLD_RANK", "0"}};
  EXPECT_EQ(Find({}, {{kOpenMpi, kOfMpirun}})->text, "");
  EXPECT_EQ(Find({}, {{kOpenMpi, kOfMpirun}, {"OMPI_COMM_WORLD_RANK", "0"}})->text, "");
  EXPECT_EQ(Find(rank, {{kOpenMpi, kOfMpirun}})->text, "");
  EXPECT_EQ(Find({{kOpenMpi, kOfMpirun}})->text, "");
  for (const char* guessable : {"000000000001e240-0000000000000003", "00000000ffffffff-5c1d9be6a7f",
                                "1-2", "no number", "-5c1d9be6a7f00384"}) {
    EXPECT_EQ(Find({{kOpenMpi, guessable}, {"OMPI_COMM_WORLD_RANK", "0"}})->text, "") << guessable;
  }
  const char* const least = "0000000100000000-0000000000000003";
  EXPECT_EQ(Find({{kOpenMpi, least}, {"OMPI_COMM_WORLD_RANK", "0"}})->text, least);
}

TEST_F(SecretTest, TheEnvironmentAtExecStaysAsItWas) {
  ASSERT_EQ(setenv("TUTTI_TEST_LATER", "1", 1), 0);
  const Environment at_exec = EnvironmentAtExec();
  EXPECT_EQ(at_exec("TUTTI_TEST_LATER"), nullptr);
  ASSERT_EQ(unsetenv("TUTTI_TEST_LATER"), 0);
  ASSERT_NE(at_exec("PATH"), nullptr);
  EXPECT_STREQ(at_exec("PATH"), getenv("PATH"));
  EXPECT_EQ(at_exec("PAT"), nullptr);
}

TEST_F(SecretTest, ShortOnesAreRefusedFromAnySource) {
  EXPECT_EQ(Find({{"TUTTI_COMM_KEY", "12345678"}})->text, "12345678");
  EXPECT_THAT(Refusal({{"TUTTI_COMM_KEY", "1234567"}}), HasSubstr("TUTTI_COMM_KEY has 7 bytes"));
  Write("  1234567 \n");
  EXPECT_THAT(Refusal(), HasSubstr(path() + " has 7 bytes"));
  Write("");
  EXPECT_THAT(Refusal(), HasSubstr(path() + " has 0 bytes"));
}

TEST_F(SecretTest, AFileThatOthersReachIsRefused) {
  for (const mode_t mode : {0640u, 0604u, 0620u, 0610u}) {
    Write("a good secret", mode);
    EXPECT_THAT(Refusal(), HasSubstr("chmod 600 " + path())) << mode;
    EXPECT_THAT(Refusal(), HasSubstr("remove the file")) << mode;
    EXPECT_THAT(Refusal(), HasSubstr("or set TUTTI_COMM_KEY")) << mode;
    // A secret from elsewhere makes the file needless.
    EXPECT_EQ(Find({{"TUTTI_COMM_KEY", "12345678"}})->text, "12345678");
  }
  Write("a good secret", 0400);
  EXPECT_EQ(Find()->text, "a good secret");
}

TEST_F(SecretTest, AFileOfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to give a file away";
  Write("a good secret");
  ASSERT_EQ(chown(path().c_str(), 65534, 65534), 0);
  EXPECT_THAT(Refusal(), HasSubstr("belongs to user 65534"));
  EXPECT_THAT(Refusal(), HasSubstr("or set TUTTI_COMM_KEY"));
}

TEST_F(SecretTest, WhatIsNoFileIsRefused) {
  ASSERT_EQ(symlink("/etc/hostname", path().c_str()), 0);
  EXPECT_THAT(Refusal(), HasSubstr(path() + " cannot be read"));
  ASSERT_EQ(unlink(path().c_str()), 0);
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  EXPECT_THAT(Refusal(), HasSubstr("is not a file"));
  ASSERT_EQ(unlink(path().c_str()), 0);
  Write(std::string(5000, 'x'));
  EXPECT_THAT(Refusal(), HasSubstr("more than 4096 bytes"));
}

}  // namespace
}  // namespace tutti
