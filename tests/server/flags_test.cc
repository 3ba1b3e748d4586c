#include "server/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/control/temp_dir.h"

namespace vswitch::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using vswitch::testing::TempDir;
using vswitch::testing::write_file;

ParsedFlags parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "vswitchd");
  return parse_flags(static_cast<int>(arguments.size()), arguments.data());
}

Flags parse_ok(std::vector<const char*> arguments) {
  ParsedFlags parsed = parse(std::move(arguments));
  EXPECT_FALSE(parsed.should_exit) << parsed.output;
  return parsed.flags;
}

void expect_usage(std::vector<const char*> arguments, const std::string& text) {
  const ParsedFlags parsed = parse(std::move(arguments));
  EXPECT_TRUE(parsed.should_exit);
  EXPECT_EQ(parsed.exit_code, 2);
  EXPECT_THAT(parsed.output, HasSubstr(text));
}

TEST(Flags, Defaults) {
  const Flags flags = parse_ok({});
  ASSERT_EQ(flags.listen.size(), 1u);
  EXPECT_EQ(flags.listen.front().to_string(), api::default_server());
  EXPECT_EQ(flags.run_dir, api::default_run_dir());
  EXPECT_EQ(flags.metrics_listen.to_string(), kDefaultMetricsListen);
  EXPECT_EQ(flags.dataplane.worker_count, 1u);
  EXPECT_EQ(flags.dataplane.memory_bytes, 64u << 20);
  EXPECT_EQ(flags.dataplane.hugepages, dataplane::HugepageMode::kAuto);
  EXPECT_EQ(flags.log_level, LogLevel::kInfo);
}

TEST(Flags, HelpAndVersionSucceed) {
  for (const char* flag : {"--help", "--version"}) {
    const ParsedFlags parsed = parse({flag});
    EXPECT_TRUE(parsed.should_exit);
    EXPECT_EQ(parsed.exit_code, 0);
    EXPECT_THAT(parsed.output, HasSubstr("vswitch"));
  }
  const std::string help = parse({"--help"}).output;
  for (const char* flag :
       {"--listen", "--metrics-listen", "--run-dir", "--state-dir", "--workers", "--worker-cpus",
        "--memory", "--hugepages", "--log-level", "--config", "--version"}) {
    EXPECT_THAT(help, HasSubstr(flag));
  }
}

TEST(Flags, Addresses) {
  const Flags flags =
      parse_ok({"--listen", "unix:///tmp/a.sock", "--listen", "/tmp/b.sock", "--listen",
                "127.0.0.1:5000", "--listen", "c.sock", "--metrics-listen", "127.0.0.2:9000"});
  ASSERT_EQ(flags.listen.size(), 4u);
  EXPECT_EQ(flags.listen[0].path, "/tmp/a.sock");
  EXPECT_EQ(flags.listen[1].path, "/tmp/b.sock");
  EXPECT_EQ(flags.listen[2].to_string(), "127.0.0.1:5000");
  EXPECT_EQ(flags.listen[3].path, (std::filesystem::current_path() / "c.sock").string());
  EXPECT_EQ(flags.metrics_listen.to_string(), "127.0.0.2:9000");
  EXPECT_FALSE(parse_ok({"--metrics-listen", "off"}).has_metrics);
  for (const char* bad : {"", "unix://", "host:99999", "host:", ":80", "::1:80"}) {
    expect_usage({"--listen", bad}, "--listen");
  }
  expect_usage({"--metrics-listen", "/tmp/socket"}, "--metrics-listen");
  expect_usage({"--metrics-listen", "nonsense"}, "--metrics-listen");
  expect_usage({"--metrics-listen", "[::1]:9000"}, "IPv4 only");
}

TEST(Flags, Directories) {
  const Flags flags = parse_ok({"--run-dir", "/tmp/x/", "--state-dir", "state"});
  EXPECT_EQ(flags.run_dir, "/tmp/x");
  EXPECT_EQ(flags.state_dir.front(), '/');
}

TEST(Flags, Workers) {
  EXPECT_EQ(parse_ok({"--workers", "3"}).dataplane.worker_count, 3u);
  const Flags flags = parse_ok({"--worker-cpus", "1-3,5"});
  EXPECT_THAT(flags.dataplane.worker_cpus, ElementsAre(1, 2, 3, 5));
  EXPECT_EQ(flags.dataplane.worker_count, 4u);
  expect_usage({"--workers", "2", "--worker-cpus", "1"}, "excludes");
  expect_usage({"--workers", "0"}, "--workers");
  for (const char* bad : {"", "a", "1-", "-1", "3-1", "1,,2", "1,", "1-3,2", "99999"}) {
    expect_usage({"--worker-cpus", bad}, "--worker-cpus");
  }
}

TEST(Flags, Sizes) {
  EXPECT_EQ(*parse_size("65536"), 65536u);
  EXPECT_EQ(*parse_size("64M"), 64u << 20);
  EXPECT_EQ(*parse_size("1G"), 1u << 30);
  EXPECT_EQ(*parse_size("512KiB"), 512u << 10);
  for (const char* bad : {"", "0", "M", "-1", "1.5G", "64MB", "64 M", "99999999999G"}) {
    EXPECT_FALSE(parse_size(bad).ok()) << bad;
  }
  expect_usage({"--memory", "lots"}, "--memory");
}

TEST(Flags, Choices) {
  EXPECT_EQ(parse_ok({"--hugepages", "off"}).dataplane.hugepages, dataplane::HugepageMode::kOff);
  EXPECT_EQ(parse_ok({"--log-level", "debug"}).log_level, LogLevel::kDebug);
  expect_usage({"--hugepages", "maybe"}, "--hugepages");
  expect_usage({"--log-level", "loud"}, "--log-level");
  expect_usage({"--unknown"}, "--unknown");
  expect_usage({"stray"}, "stray");
}

class ConfigFile : public ::testing::Test {
 protected:
  const char* write(const std::string& content) {
    write_file(path_, content);
    return path_.c_str();
  }
  TempDir dir_;
  const std::string path_ = dir_ / "config.yaml";
};

TEST_F(ConfigFile, HoldsEveryFlag) {
  const Flags flags = parse_ok({"--config", write("# comment\n"
                                                  "listen: [/tmp/a.sock, '127.0.0.1:5000']\n"
                                                  "metrics-listen: \"off\"\n"
                                                  "run-dir: /tmp/run\n"
                                                  "state-dir: /tmp/state\n"
                                                  "worker-cpus: 0-1\n"
                                                  "memory: 128M\n"
                                                  "hugepages: \"off\"\n"
                                                  "log-level: warning\n")});
  EXPECT_EQ(flags.listen.size(), 2u);
  EXPECT_FALSE(flags.has_metrics);
  EXPECT_EQ(flags.run_dir, "/tmp/run");
  EXPECT_EQ(flags.state_dir, "/tmp/state");
  EXPECT_THAT(flags.dataplane.worker_cpus, ElementsAre(0, 1));
  EXPECT_EQ(flags.dataplane.memory_bytes, 128u << 20);
  EXPECT_EQ(flags.dataplane.hugepages, dataplane::HugepageMode::kOff);
  EXPECT_EQ(flags.log_level, LogLevel::kWarning);
}

TEST_F(ConfigFile, CommandLineWins) {
  const char* config = write("memory: 128M\nlisten: /tmp/a.sock\nworker-cpus: 0\n");
  const Flags flags = parse_ok(
      {"--config", config, "--memory", "256M", "--listen", "/tmp/b.sock", "--workers", "2"});
  EXPECT_EQ(flags.dataplane.memory_bytes, 256u << 20);
  ASSERT_EQ(flags.listen.size(), 1u);
  EXPECT_EQ(flags.listen.front().path, "/tmp/b.sock");
  EXPECT_TRUE(flags.dataplane.worker_cpus.empty())
      << "--workers and worker-cpus exclude each other";
  EXPECT_EQ(flags.dataplane.worker_count, 2u);
}

TEST_F(ConfigFile, CpusAreAListOrText) {
  for (const char* cpus : {"[0, 1, 3]", "0-1,3", "\"0,1,3\"", "[0-1, 3]", "\n- 0-1\n- 3"}) {
    const Flags flags = parse_ok({"--config", write(std::string("worker-cpus: ") + cpus + "\n")});
    EXPECT_THAT(flags.dataplane.worker_cpus, ElementsAre(0, 1, 3)) << cpus;
  }
  for (const char* bad : {"\"\"", "[]", "", "[0, 0]", "[a]", "[[0], 1]"}) {
    expect_usage({"--config", write(std::string("worker-cpus: ") + bad + "\n")}, "");
  }
}

TEST_F(ConfigFile, MistakesAreNamed) {
  expect_usage({"--config", write("memroy: 1G\n")}, "memroy");
  expect_usage({"--config", write("config: other.yaml\n")}, "config");
  expect_usage({"--config", write("help: true\n")}, "help");
  expect_usage({"--config", write("memory: {a: b}\n")}, "memory");
  expect_usage({"--config", write("memory: lots\n")}, "lots");
  expect_usage({"--config", write("a: [\n")}, "YAML");
  expect_usage({"--config", write("- memory\n")}, "mapping");
  expect_usage({"--config", write("workers: 1\nworker-cpus: 0\n")}, "excludes");
  expect_usage({"--config", "/nonexistent/file"}, "/nonexistent/file");
  EXPECT_FALSE(parse({"--config", write("")}).should_exit) << "an empty file says nothing";
}

}  // namespace
}  // namespace vswitch::server
