#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/version.h"
#include "tests/server/test_switch.h"

namespace vswitch::server {
namespace {

using grpc::StatusCode;
using ::testing::ElementsAre;
using vswitch::testing::reason_of;
using vswitch::testing::TestSwitch;

class ListApi : public ::testing::Test {
 protected:
  ListApi() { switch_.make_ready(); }

  grpc::Status list(int page_size, const std::string& token, v1::ListPortsResponse& response) {
    grpc::ClientContext context;
    v1::ListPortsRequest request;
    request.set_page_size(page_size);
    request.set_page_token(token);
    return switch_.ports().ListPorts(&context, request, &response);
  }

  grpc::Status list_fdb(const std::string& parent, v1::ListFdbEntriesResponse& response,
                        int page_size = 0, const std::string& token = "") {
    grpc::ClientContext context;
    v1::ListFdbEntriesRequest request;
    request.set_parent(parent);
    request.set_page_size(page_size);
    request.set_page_token(token);
    return switch_.fdb().ListFdbEntries(&context, request, &response);
  }

  static std::vector<std::string> names(const v1::ListPortsResponse& response) {
    std::vector<std::string> out;
    for (const auto& port : response.ports()) out.push_back(port.name());
    return out;
  }

  TestSwitch switch_;
};

TEST_F(ListApi, PagesAreInOrderAndComplete) {
  ASSERT_TRUE(switch_.create_bridge("br0").ok());
  for (const char* id : {"d", "a", "c", "e", "b"}) ASSERT_TRUE(switch_.create_port(id).ok());
  v1::ListPortsResponse page;
  ASSERT_TRUE(list(2, "", page).ok());
  EXPECT_THAT(names(page), ElementsAre("ports/a", "ports/b"));
  v1::ListPortsResponse second;
  ASSERT_TRUE(list(2, page.next_page_token(), second).ok());
  EXPECT_THAT(names(second), ElementsAre("ports/c", "ports/d"));
  v1::ListPortsResponse last;
  ASSERT_TRUE(list(2, second.next_page_token(), last).ok());
  EXPECT_THAT(names(last), ElementsAre("ports/e"));
  EXPECT_EQ(last.next_page_token(), "");
}

TEST_F(ListApi, PagesHoldWhatStaysWhenOthersGo) {
  ASSERT_TRUE(switch_.create_bridge("br0").ok());
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(switch_.create_port(id).ok());
  v1::ListPortsResponse page;
  ASSERT_TRUE(list(2, "", page).ok());
  grpc::ClientContext context;
  v1::DeletePortRequest request;
  request.set_name("ports/b");
  google::protobuf::Empty empty;
  ASSERT_TRUE(switch_.ports().DeletePort(&context, request, &empty).ok());
  v1::ListPortsResponse second;
  ASSERT_TRUE(list(2, page.next_page_token(), second).ok());
  EXPECT_THAT(names(second), ElementsAre("ports/c"));
}

TEST_F(ListApi, RefusesABadPageSizeOrToken) {
  v1::ListPortsResponse page;
  grpc::Status status = list(-1, "", page);
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(reason_of(status), "INVALID_PAGE_SIZE");
  // The last is the token of another list.
  for (const char* token : {"x", "!!!", "cG9ydHM6", "YnJpZGdlczpicjA"}) {
    status = list(0, token, page);
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << token;
    EXPECT_EQ(reason_of(status), "INVALID_PAGE_TOKEN") << token;
  }
  EXPECT_TRUE(list(1 << 30, "", page).ok()) << "a large page size is brought down";
}

TEST_F(ListApi, ListsBridges) {
  for (const char* id : {"br1", "br0"}) ASSERT_TRUE(switch_.create_bridge(id).ok());
  ASSERT_TRUE(switch_.create_port("web").ok());
  grpc::ClientContext context;
  v1::ListBridgesResponse response;
  ASSERT_TRUE(switch_.bridges().ListBridges(&context, {}, &response).ok());
  ASSERT_EQ(response.bridges_size(), 2);
  EXPECT_EQ(response.bridges(0).name(), "bridges/br0");
  EXPECT_EQ(response.bridges(0).port_count(), 1u);
  EXPECT_EQ(response.bridges(1).name(), "bridges/br1");
}

TEST_F(ListApi, ListsTheMacTable) {
  ASSERT_TRUE(switch_.create_bridge("br0").ok());
  ASSERT_TRUE(switch_.create_bridge("br0-b").ok());
  switch_.fake().set_fdb({{"br0-b", 0, {2, 0, 0, 0, 0, 3}, "c", absl::Seconds(1)},
                          {"br0", 7, {2, 0, 0, 0, 0, 1}, "b", absl::Seconds(1)},
                          {"br0", 0, {2, 0, 0, 0, 0, 2}, "a", absl::Milliseconds(1500)}});
  v1::ListFdbEntriesResponse all;
  ASSERT_TRUE(list_fdb("bridges/-", all).ok());
  ASSERT_EQ(all.fdb_entries_size(), 3);
  EXPECT_EQ(all.fdb_entries(0).bridge(), "bridges/br0");
  EXPECT_EQ(all.fdb_entries(0).mac_address(), "02:00:00:00:00:02");
  EXPECT_EQ(all.fdb_entries(0).port(), "ports/a");
  EXPECT_EQ(all.fdb_entries(0).age().seconds(), 1);
  EXPECT_EQ(all.fdb_entries(0).age().nanos(), 500'000'000);
  EXPECT_EQ(all.fdb_entries(1).vlan(), 7u);
  EXPECT_EQ(all.fdb_entries(2).bridge(), "bridges/br0-b");

  v1::ListFdbEntriesResponse one;
  ASSERT_TRUE(list_fdb("bridges/br0-b", one).ok());
  EXPECT_EQ(one.fdb_entries_size(), 1);

  std::string token;
  int pages = 0;
  do {
    v1::ListFdbEntriesResponse page;
    ASSERT_TRUE(list_fdb("bridges/-", page, 1, token).ok());
    EXPECT_EQ(page.fdb_entries_size(), 1);
    token = page.next_page_token();
    ++pages;
  } while (!token.empty() && pages < 10);
  EXPECT_EQ(pages, 3);
}

TEST_F(ListApi, RefusesABadParent) {
  v1::ListFdbEntriesResponse response;
  grpc::Status status = list_fdb("br0", response);
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(reason_of(status), "INVALID_RESOURCE_NAME");
  status = list_fdb("bridges/br9", response);
  EXPECT_EQ(status.error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(reason_of(status), "BRIDGE_NOT_FOUND");
}

TEST_F(ListApi, TellsOfTheSystem) {
  grpc::ClientContext context;
  v1::SystemInfo info;
  ASSERT_TRUE(switch_.system().GetSystemInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.version(), kVersion);
  EXPECT_EQ(info.worker_count(), 1u);
  EXPECT_EQ(info.memory_mode(), v1::SystemInfo::ORDINARY_PAGES);
  EXPECT_EQ(info.memory_bytes(), 64u << 20);
  EXPECT_EQ(info.run_dir(), switch_.dir().path());

  grpc::ClientContext second;
  v1::ListWorkersResponse workers;
  ASSERT_TRUE(switch_.system().ListWorkers(&second, {}, &workers).ok());
  ASSERT_EQ(workers.workers_size(), 1);
  EXPECT_EQ(workers.workers(0).name(), "workers/0");
  EXPECT_EQ(workers.workers(0).cpu(), 1u);
  EXPECT_EQ(workers.workers(0).busy_cycles(), 12'000u);
}

}  // namespace
}  // namespace vswitch::server
