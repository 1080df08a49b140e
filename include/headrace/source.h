// Samples by index, as stored, and what is known of them without reading.
#pragma once

#include <headrace/error.h>
#include <headrace/options/data.h>
#include <headrace/sample.h>
#include <headrace/store.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

// Choosing a checkpoint and stopping early look at val only; test is read once, at the end. The numbers are those that
// packs record.
enum class Split : std::uint8_t { train = 0, val = 2, test = 1 };
constexpr auto choices(Split) {
  return std::array{Choice<Split>{Split::train, "train"}, Choice<Split>{Split::val, "val"},
                    Choice<Split>{Split::test, "test"}};
}
// The split of this name. Error{invalid_argument} begins with `what`, which had it, and names the three.
Split split_named(std::string_view name, std::string_view what);

// Of an image, in pixels.
struct ImageSize {
  int height = 0;
  int width = 0;
};

// Of one image, in a source or in a batch.
struct ImageShape {
  int channels;
  int height;
  int width;
};

// Of the images that a source's schema promises. 0 x 0: each has a size of its own; all 0: there are none.
ImageShape stored_shape(const Schema& schema);

inline constexpr std::int64_t kUnknownClasses = std::numeric_limits<std::int64_t>::max();

// Source::size() where nobody knows before its end: of a stream. Larger than any number of samples.
inline constexpr std::int64_t kUnknownSize = std::int64_t{1} << 62;

// What read() of such a source throws behind its last sample, which ends a Loader's epoch there.
class EndOfSamples : public Error {
 public:
  explicit EndOfSamples(std::int64_t samples);  // All that an epoch has.
  std::int64_t samples() const noexcept { return samples_; }

 private:
  std::int64_t samples_;
};

// Of all samples of a source.
struct SourceInfo {
  // What every sample is made of. Images are 1 grey or 3 RGB channels; encoded ones of another kind are converted when
  // they are decoded.
  Schema schema;
  std::int64_t num_classes = kUnknownClasses;  // Unknown: any label from 0 on will do.
  std::vector<std::string> class_names{};  // One a class, in the order of the labels; empty: they have numbers only.
  std::vector<std::string> remarks{};      // What opening found odd but could live with: a few sentences.
  // Of names, sizes and labels, and of what else is in memory already: another one when the data set has changed, the
  // same wherever it lies.
  std::uint64_t fingerprint = 0;
  // Samples of each part of the source that is best read from beginning to end (archives, packed files), in the order
  // of the indices; empty when any sample costs the same wherever it lies.
  std::vector<std::int64_t> shards{};
  // Where the entropy index of its JPEG files lies or may be written, in a folder of its own; empty: there is no place.
  std::filesystem::path index_file{};
  // What read() gives lies in memory as it is, in no buffer of the sample: a cache would only hold it twice.
  bool in_memory = false;
};

// What a source may do beside reading is an interface each, as thread-safe as read(). `buffer` is the caller's, used
// again; errors are read()'s.

// Images of pixels, of which a part costs less than the whole. Of use where labels are KnownSamples, too.
class ImageRows {
 public:
  // What read() gives of the image, but for its bytes.
  virtual Payload outline(std::int64_t index) const = 0;
  // Rows [first, first + count) of it, at least one.
  virtual std::span<const std::uint8_t> read_rows(std::int64_t index, int first, int count,
                                                  std::vector<std::uint8_t>& buffer) const = 0;

 protected:
  ~ImageRows() = default;
};

// Height and width of images that each have their own, for much less than reading one costs.
class ImageSizes {
 public:
  // Of the image that read() gives: of a file its header. 0 x 0: that tells none.
  virtual ImageSize image_size(std::int64_t index, std::vector<std::uint8_t>& buffer) const = 0;

 protected:
  ~ImageSizes() = default;
};

// What is known of a sample without reading it. No index is checked.
class KnownSamples {
 public:
  // The label that read() gives. -1: it is known only once the sample was read, or there is none.
  virtual std::int64_t label(std::int64_t index) const = 0;
  // Of read()'s bytes; what a sample costs to read and decode goes by it. 0: not known.
  virtual std::int64_t sample_bytes(std::int64_t /*index*/) const { return 0; }

 protected:
  ~KnownSamples() = default;
};

class Expecting {
 public:
  // A hint: these will be read soon, in about this order, some perhaps not. A Loader gives it once for each batch that
  // it begins. Returns without waiting for bytes; what is wrong with a sample is told when it is read.
  virtual void expect(std::span<const std::int64_t> indices) const noexcept = 0;

 protected:
  ~Expecting() = default;
};

class StoredNames {
 public:
  // The sample's name within the data set, as it is stored: "cat/1.jpg", any bytes but NUL. Empty: it has a number
  // only.
  virtual std::string stored_name(std::int64_t index) const = 0;

 protected:
  ~StoredNames() = default;
};

class Interruptible {
 public:
  // Every read() that runs in another thread and takes long ends soon, with Error{cancelled}. A Loader calls it when an
  // epoch is given up and its last samples have not come after a second.
  virtual void interrupt() const = 0;

 protected:
  ~Interruptible() = default;
};

// Of one source: what it can do beside reading, null where it cannot. As long as the source lives the same.
struct Capabilities {
  const ImageRows* rows = nullptr;
  const ImageSizes* sizes = nullptr;
  const KnownSamples* known = nullptr;
  const Expecting* expecting = nullptr;
  const StoredNames* names = nullptr;
  const Interruptible* interruptible = nullptr;
  const Store* store = nullptr;  // Of the keys of payloads that are ranges.
};

// Thread-safe once built. Four functions make one, a fifth tells what else it can do; a Loader asks for that once, when
// it is built, and a source around another one gives what that has (src/data/source/held_out.cpp).
class Source {
 public:
  virtual ~Source() = default;
  // kUnknownSize: read() tells the end. A Loader then asks in the order of the indices but for its threads, which read
  // a little ahead, and behind the end, too; in each epoch from 0 on. Where it fails for good its errors are internal:
  // with others data.on_corrupt = zero would go on for ever.
  virtual std::int64_t size() const = 0;
  // The same object for as long as the source lives.
  virtual const SourceInfo& info() const = 0;
  // Gives every field of the schema its payload. `sample` is the caller's, used again, and has as many fields, none of
  // which is there; bytes that do not lie in memory already go into its buffers, but for those of a range, whose
  // field's buffer is for whoever fetches it. Labels are 0 to num_classes - 1. Payloads are valid as long as the source
  // and until `sample` is read into again. Throws Error that names the sample when it cannot be read, and EndOfSamples
  // where the source's size is unknown and it has no such sample.
  virtual void read(std::int64_t index, Sample& sample) const = 0;
  // What a person needs to find the sample, one line of text: "train-images-idx3-ubyte.gz[137]".
  virtual std::string name(std::int64_t index) const = 0;
  virtual Capabilities capabilities() const { return {}; }
};

// "idx:DIR": {train,val,t10k}-images-idx3-ubyte[.gz] and {train,val,t10k}-labels-idx1-ubyte[.gz], read whole into
// memory (47 MB for Fashion-MNIST); t10k is the split test. Errors: not_found (file missing, with what was looked for),
// corrupt_data (wrong magic, truncated, trailing bytes, counts of images and labels differ, with both numbers), io
// (unreadable), out_of_memory (header promises more than 4 GiB).
//
// "folder:DIR": torchvision's ImageFolder. Images are DIR/train/CLASS/...jpg, .jpeg or .png, and so in DIR/val and
// DIR/test, read when they are wanted. The labels count the classes in Python's order of their names;
// samples come in the order ImageFolder gives them. Folders below a class are walked and links followed; what is no
// image is left out with a remark, as is a folder reached a second time (a loop of links). Costs about 2 s for a
// million files, and 24 bytes and the name each. Errors: not_found (no folder of the split), corrupt_data (no classes,
// a class without images, the splits' classes differ), io (a folder that cannot be listed).
//
// "classes:DIR": the same with one root: images in DIR/CLASS, all of them the split train. There is no place for an
// index of them.
//
// "list:FILE": images by a text file: in each line a path, relative to the file's folder or absolute, a label, and
// perhaps train, val or test (train where there is none), separated by tabs, or by commas as in CSV, or the label by
// the last space. Empty lines and those that begin with # say nothing, nor does a first line "path,label" or
// "path,label,split". Labels that all are numbers below a million are taken as they are, others are counted in Python's
// order. Costs an examination of each file. Errors: not_found (no FILE, or no line of the split), corrupt_data (bad
// lines: the first with its reason, and the numbers of the next), io.
//
// "pack:PATH": a file that `headrace pack` wrote, or a folder of them (*.pack), in the order of their names. Samples,
// labels and order are those of what was packed, and so is the fingerprint of a folder's or IDX samples kept as they
// were; each is verified when read. Of decoded images (PackForm) only the rows that a crop needs are read. Rows and
// names are in memory, about 72 bytes and the name a sample. Errors: not_found (no such split), corrupt_data
// (not as it was written), unsupported (of a later version), io (cannot be read).
//
// "csv:FILE": a table of numbers, a sample in each line, its values separated by commas. The first line names the
// columns. "label", where there is one, is the class, a whole number from 0 on, and the field `labels`; "split",
// likewise, is train, val or test, and without it all are train; all other columns are the field `values`, float32, in
// their order. The split's numbers are held in memory, 4 bytes each. Errors: not_found (no FILE), corrupt_data (a bad
// line, with its column and what was found), unsupported (a line of more values than data.max_sample_bytes holds), io.
//
// A split that the data does not have is Error{not_found}, which names the ones it has; find_source() gives null then.
// `limits` are those of images that are read when the source is opened, which is refused then (unsupported); of
// others the Loader refuses samples.
//
// All: not_found (no DIR), invalid_argument (unknown scheme, with the known ones).
std::unique_ptr<Source> open_source(const std::string& uri, Split split, const SampleLimits& limits = {});
std::unique_ptr<Source> find_source(const std::string& uri, Split split, const SampleLimits& limits = {});
// The splits that the data has, in the order train, val, test. Of a list or a pack every entry is looked at.
std::vector<Split> splits_of(const std::string& uri);

}  // namespace headrace
