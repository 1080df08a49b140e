#include "data/store/page_cache.h"

#include <gmock/gmock.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "core/base/error_of.h"
#include "core/base/files.h"
#include "data/store/scratch_folder.h"

namespace headrace {
namespace {

using PageCache = ScratchFolder;

TEST_F(PageCache, HoldsEveryPageOfAFileThatWasJustRead) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto path = write("file", std::string(3 * page + 1, 'x'));
  EXPECT_EQ(read_file(path, 1 << 30).size(), 3 * page + 1);
  CachedPages found = pages_in_cache(path);
  EXPECT_EQ(found.pages, 4);
  EXPECT_EQ(found.cached, 4);
  found.add(pages_in_cache(write("empty", "")));
  EXPECT_EQ(found.share(), 1);
}

TEST_F(PageCache, LosesAFileThatIsDroppedAndNoByteOfIt) {
  const std::string bytes(1 << 20, 'x');
  const auto path = folder_ / "file";
  write_file(path, bytes);  // And syncs.
  drop_from_page_cache(path);
  constexpr auto kExt = 0xEF53;  // ext2 to ext4 are known to follow; what lies in memory cannot.
  struct statfs system {};
  ASSERT_EQ(::statfs(path.c_str(), &system), 0);
  if (system.f_type == kExt) {
    EXPECT_LT(pages_in_cache(path).share(), 0.1);
  }
  EXPECT_EQ(read_file(path, 1 << 30), bytes);
}

TEST_F(PageCache, RefusalsNameTheFile) {
  const auto absent = folder_ / "absent";
  EXPECT_THAT(error_of(ErrorCode::io, [&] { drop_from_page_cache(absent); }), testing::HasSubstr(absent.native()));
  EXPECT_THAT(error_of(ErrorCode::io, [&] { pages_in_cache(absent); }), testing::HasSubstr(absent.native()));
}

}  // namespace
}  // namespace headrace
