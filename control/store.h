// Desired state on disk: one file, `state.yaml`, in a directory that is ours alone.
//
// A save is a new file, fsync, rename over the old one, fsync of the directory: after a crash at
// any point the file holds either the old or the new state, whole. One thread at a time.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "control/types.h"
#include "dataplane/os/unique_fd.h"

namespace vswitch::control {

class Store {
 public:
  // The directory must exist. Takes a lock that lasts as long as the object (and ends with the
  // process, however that ends). FAILED_PRECONDITION if another process holds it.
  static absl::StatusOr<std::unique_ptr<Store>> open(const std::string& directory);

  // `run_dir` is where relative socket paths will be. No file: an empty state. A damaged file or
  // one of another version is an error whose message names the file and the remedy; the file is
  // left as it is.
  absl::StatusOr<DesiredState> load(const std::string& run_dir) const;

  // OK: durable. Otherwise the old state is still what the next start finds.
  // RESOURCE_EXHAUSTED with STORE_FULL, INTERNAL with STORE_WRITE_FAILED.
  absl::Status save(const DesiredState& state);

  const std::string& directory() const { return directory_; }

 private:
  Store(std::string directory, UniqueFd lock);

  absl::Status write(const std::string& content);
  // Fails when the rename was not made durable; the new file may be in place then.
  absl::Status sync_directory() const;

  std::string directory_;
  std::string path_;
  UniqueFd lock_;
};

}  // namespace vswitch::control
