#pragma once

// Files that the library writes at paths of the user's. A path may lie in a folder where other
// users make files too, such as /tmp. A symbolic link of another user is therefore not followed, a
// file or FIFO of another user is not written to, and no name that can be guessed is taken for a
// file that exists only for a while.
//
// Any thread.

#include <string>
#include <string_view>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tutti {

// Opens a file by open(2) with `flags`, which include the access, and makes the file with mode 0644
// if there is none. Returns no descriptor, and sets errno, after a failure. A symbolic link is
// followed only if this user or root owns the link, and a regular file or a FIFO of another user is
// refused with EACCES. A FIFO without a reader is refused with ENXIO. Never blocks.
UniqueFd OpenToWrite(const std::string& path, int flags);

// Writes the whole text to a descriptor. SystemError after a failure.
Status WriteAll(int fd, std::string_view text);

// Makes the file at `path` have the text. The text goes to a new file with a random name in the
// same folder, which takes the mode of the old file and is renamed: after a failure the old file is
// as it was. The text is written in place to a device, a FIFO or the target of a link, and to a
// file in a folder where this user makes no files.
Status ReplaceFile(const std::string& path, std::string_view text);

}  // namespace tutti
