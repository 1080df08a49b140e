// Samples by index, as stored.
#pragma once

#include <headrace/options/data.h>
#include <headrace/sample.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
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

// Thread-safe once built.
class Source {
 public:
  virtual ~Source() = default;
  virtual std::int64_t size() const = 0;
  virtual std::int64_t num_classes() const = 0;  // The largest std::int64_t: unknown, any label from 0 on will do.
  // Of every image. 0 x 0: each image has a size of its own, be it encoded or pixels.
  virtual int height() const = 0;
  virtual int width() const = 0;
  // 1 grey, 3 RGB. Encoded images of another kind are converted when they are decoded.
  virtual int channels() const = 0;
  // What every sample is made of, the same for as long as the source lives. By default an image, as told above, and its
  // label.
  virtual Schema schema() const { return Schema::image_and_labels(height(), width(), channels()); }
  // Gives every field of the schema its payload. `sample` is the caller's, used again, and has as many fields, none of
  // which is there; bytes that do not lie in memory already go into its buffers. Labels are 0 to num_classes() - 1.
  // Payloads are valid as long as the source and until `sample` is read into again. Throws Error that names the sample
  // when it cannot be read.
  virtual void read(std::int64_t index, Sample& sample) const = 0;
  // What read() gives of an image of pixels, but for its bytes, where read_rows() gives a part of them for less than
  // the whole costs. nullopt: read() it.
  virtual std::optional<Payload> outline(std::int64_t /*index*/) const { return std::nullopt; }
  // Rows [first, first + count) of the image that outline() tells of, at least one. `buffer` is the caller's, used
  // again; errors as read()'s.
  virtual std::span<const std::uint8_t> read_rows(std::int64_t index, int first, int count,
                                                  std::vector<std::uint8_t>& buffer) const;
  // Whether what read() gives lies in memory as pixels: a cache of decoded images would only hold it twice.
  virtual bool in_memory() const { return false; }
  // Of the image that read() gives, for much less than reading it costs: of a file its header. 0 x 0: that tells
  // none. nullopt: this source knows them of no sample before it is read. Buffer and errors as read_rows()'s.
  virtual std::optional<ImageSize> image_size(std::int64_t index, std::vector<std::uint8_t>& buffer) const;
  // The label that read() gives, without reading. `index` is not checked.
  virtual std::int64_t label(std::int64_t index) const = 0;
  // Of read()'s bytes, as far as it is known without reading; what a sample costs to read and decode goes by it.
  virtual std::int64_t sample_bytes(std::int64_t /*index*/) const { return 0; }
  // Samples of each part of the source that is best read from beginning to end (archives, packed files), in the order
  // of the indices; empty when any sample costs the same wherever it lies.
  virtual std::vector<std::int64_t> shards() const { return {}; }
  // What a person needs to find the sample, one line of text: "train-images-idx3-ubyte.gz[137]".
  virtual std::string sample_name(std::int64_t index) const = 0;
  // One a class, in the order of the labels; empty when classes have numbers only.
  virtual std::vector<std::string> class_names() const { return {}; }
  // What opening found odd but could live with: a few sentences.
  virtual std::vector<std::string> remarks() const { return {}; }
  // A read() that runs in another thread and takes long ends soon, with Error{cancelled}, where the source can do that.
  // A Loader calls it when an epoch is given up and its last samples have not come after a second.
  virtual void interrupt() const {}
  // Of names, sizes and labels, and of what else is in memory already: another one when the data set has changed, the
  // same wherever it lies. Constant time.
  virtual std::uint64_t fingerprint() const = 0;
  // Where the entropy index of its JPEG files lies or may be written, in a folder of its own; empty: there is no place.
  virtual std::filesystem::path index_file() const { return {}; }
  // The sample's name within the data set, as it is stored: "cat/1.jpg", any bytes but NUL. Empty: it has a number
  // only.
  virtual std::string stored_name(std::int64_t /*index*/) const { return {}; }
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
