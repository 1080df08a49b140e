#include "data/source/process_source.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/loader.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/descriptor.h"
#include "core/base/fail.h"
#include "core/base/temporary_folder.h"
#include "data/loader/testing.h"
#include "data/source/read_sample.h"
#include "data/source/source_contract.h"

namespace headrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A worker that speaks the protocol in 90 lines and does what its last argument says, on sample 5 where it says nothing
// else. Sample i is a 4 x 4 grey image of i's, with label i % 3.
constexpr const char* kWorkerProgram = R"(
import mmap, os, signal, socket, struct, sys, time
folder, mode = sys.argv[1:3]
control, slot = socket.socket(fileno=3), mmap.mmap(4, 0)
payload = os.pread(5, os.fstat(5).st_size, 0)
served = 0

def send(kind, *numbers):
    try: control.send(struct.pack("<II7q", kind, 0, *numbers, *[0] * (7 - len(numbers))))
    except BrokenPipeError: os._exit(0)

def fail(index, text):
    slot[:len(text)] = text
    send(4, index, len(text))

def once(name):  # Whether this is the first of all workers to come here.
    try:
        os.close(os.open(os.path.join(folder, name), os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False

def schema(*fields):  # Each: name, type, encoding, shape.
    entries = b""
    for name, dtype, encoding, *shape in fields:
        entries += struct.pack(f"<BBBBI{len(shape)}q", dtype, encoding, 0, len(shape), len(name), *shape)
        entries += name.encode() + bytes(-len(name) % 8)
    return struct.pack("<4sIII", b"HRFS", 1, len(fields), 16 + len(entries)) + entries

def ready(fields, classes=3, labels=b"", format=2):
    slot[:len(fields + labels)] = fields + labels
    send(1, format, size, classes, len(fields), len(labels) // 8)

def field(dtype, at=0, extents=(), size=0, kind=2, value=b""):
    return struct.pack("<BBBBIqq6i8sq", kind, 0, len(extents), dtype, 0, at, size, *extents, *[0] * (6 - len(extents)), value, 0)

size = 12
images = ("image", 0, 1, 4, 4, 1), ("labels", 1, 0)
if mode == "mute": time.sleep(1000)
if mode == "exits at start": os._exit(4)
if mode == "refuses": fail(-1, b"ImportError: no module named water"); time.sleep(1000)
if mode == "other protocol": ready(schema(*images), format=1); time.sleep(1000)
if mode == "no schema": ready(bytes(64)); time.sleep(1000)
if mode == "much schema": send(1, 2, size, 3, 1 << 40, 0); time.sleep(1000)
if mode == "two of one name": ready(schema(("x", 0, 0), ("x", 1, 0))); time.sleep(1000)
if mode == "negative": size = -1
if mode == "changing": size = 12 if once("told") else 11
boxes = mode.startswith("boxes")
if mode == "labels": ready(schema(*images), labels=struct.pack("<12q", *[i % 3 for i in range(size)]))
elif mode == "encoded": ready(schema(("image", 0, 1, -1, -1, 3), ("labels", 1, 0)), classes=-1)
elif mode == "boxes differ" and not once("told"): ready(schema(("boxes", 2, 0, 3, 2), ("name", 0, 2, -1)), classes=-1)
elif boxes: ready(schema(("boxes", 2, 0, -1, 2), ("name", 0, 2, -1)), classes=-1)
else: ready(schema(*images))

def answer_boxes(index):  # As many as the index says, each with its number, and a name of as many letters.
    count, dtype, at, letters = index, 2, 128, b"x" * index
    if index == 5:
        if mode == "boxes fall": at = 120
        if mode == "boxes change": dtype = 4
        if mode == "boxes overflow": count = 1 << 59
        if mode == "boxes giant": count = 10 << 27  # 10 GiB.
        if mode == "boxes latin": letters = b"\xe9t\xe9 x"
        if mode == "boxes flat": at = 130
    values = struct.pack("<2f", index, index) * index
    text_at = 128 + len(values)
    whole = field(dtype, at, (min(count, 1 << 30), 2), count * 8) + field(0, text_at, (len(letters),), len(letters))
    whole += values + letters + bytes(-len(letters) % 8)
    slot[:len(whole)] = whole
    send(3, index, len(whole))

def answer(index):
    if boxes: return answer_boxes(index)
    bytes_, message, height, width, label = 16, 144, 4, 4, index % 3
    if index == 5:
        if mode == "dies": os.kill(os.getpid(), signal.SIGKILL)
        if mode == "dies once" and once("died"): os.kill(os.getpid(), signal.SIGKILL)
        if mode == "exits": os._exit(3)
        if mode == "hangs" or mode == "hangs once" and once("hung"): time.sleep(1000)
        if mode == "closes": control.close(); time.sleep(1000)
        if mode == "raises": return fail(5, b"ValueError: bad water\n\nTraceback: line 7")
        if mode == "raises junk": return fail(5, b"ValueError: \xff\xfe")
        if mode == "raises much": return send(4, 5, 1 << 40)
        if mode == "label": label = 3
        if mode == "other label": label = 0
        if mode == "shape": height = 5
        if mode == "bytes": bytes_ = 15
        if mode == "too many bytes": message = 1 << 40
        if mode == "negative bytes": message = -1
        if mode == "few bytes": message = 100
        if mode == "other sample": return send(3, 6, 144)
        if mode == "other kind": return send(77, 5)
        if mode == "short": return control.send(b"water")
    pixels = bytes([index] * bytes_)
    if mode == "tells served":  # How many samples this process has answered.
        label = 0
        pixels = bytes([served] * 16)
    elif mode == "tells payload": pixels = payload[:16].ljust(16, b".")
    whole = field(0, 128, (height, width, 1), bytes_) + field(1, kind=1, value=struct.pack("<q", label))
    slot[:144] = whole + pixels.ljust(16, b"\0")
    send(3, index, message)

while True:
    message = control.recv(65)
    if not message: sys.exit(0)
    if served == 0: print("a worker's own line on stdout")
    served += 1
    answer(struct.unpack("<II7q", message)[2])
)";

class ProcessSourceTest : public testing::Test {
 protected:
  ProcessSourceOptions options(const std::string& mode, std::int64_t workers = 2) const {
    return {.name = "test",
            .command = {"python3", "-I", "-S", "-c", kWorkerProgram, folder_.string(), mode},
            .workers = workers,
            .sample_bytes_max = 1 << 20,
            .timeout = std::chrono::seconds(60)};
  }
  std::unique_ptr<ProcessSource> open(const std::string& mode, std::int64_t workers = 2) const {
    return std::make_unique<ProcessSource>(options(mode, workers), std::span<const std::byte>{});
  }
  std::string error_at_start(ErrorCode code, const std::string& mode) const {
    return error_of(code, [&] { open(mode); });
  }
  std::string error_on_five(ErrorCode code, const std::string& mode) const {
    const auto source = open(mode);
    EXPECT_EQ(read_sample(*source, 4).image().bytes[0], 4);
    std::string text = error_of(code, [&] { read_sample(*source, 5); });
    EXPECT_EQ(read_sample(*source, 6).image().bytes[0], 6) << "the next sample is read as if nothing had been";
    return text;
  }

  const TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

std::vector<std::uint64_t> all_batches(const std::shared_ptr<const Source>& source, std::int64_t threads) {
  Loader loader{source, options_of(5, threads), 1, true};
  auto all = digests(loader.epoch(0));
  const auto second = digests(loader.epoch(1));
  all.insert(all.end(), second.begin(), second.end());
  return all;
}

TEST_F(ProcessSourceTest, CapabilitiesAgreeWithReading) {
  for (const char* mode : {"plain", "labels", "boxes"}) {
    SCOPED_TRACE(mode);
    expect_capabilities_agree(*open(mode));
  }
}

TEST_F(ProcessSourceTest, TellsWhatItsWorkersTell) {
  const auto source = open("labels");
  EXPECT_EQ(source->size(), 12);
  EXPECT_EQ(source->info().num_classes, 3);
  EXPECT_EQ(stored_shape(source->info().schema).height, 4);
  EXPECT_EQ(stored_shape(source->info().schema).width, 4);
  EXPECT_EQ(stored_shape(source->info().schema).channels, 1);
  EXPECT_EQ(source->label(11), 2);
  EXPECT_EQ(source->name(7), "test[7]");
  const auto without = open("plain");
  EXPECT_EQ(without->label(11), -1) << "it was not read yet";
  EXPECT_EQ(read_sample(*without, 11).label(), 2);
  EXPECT_EQ(without->label(11), 2);
  EXPECT_NE(without->info().fingerprint, source->info().fingerprint);
  EXPECT_EQ(open("plain", 1)->info().fingerprint, without->info().fingerprint);
  EXPECT_EQ(open("encoded")->info().num_classes, kUnknownClasses);
}

TEST_F(ProcessSourceTest, BatchesAreTheSameBytesWithAnyNumberOfWorkersAndThreads) {
  const auto expected = all_batches(open("plain", 1), 0);
  ASSERT_EQ(expected.size(), 6U);
  EXPECT_EQ(all_batches(open("plain", 2), 1), expected);
  EXPECT_EQ(all_batches(open("plain", 2), 7), expected);
  EXPECT_EQ(all_batches(open("plain", 7), 7), expected);
}

TEST_F(ProcessSourceTest, TheNumberOfWorkersChangesWithinAnEpochWithoutChangingAByte) {
  const auto expected = all_batches(open("plain", 2), 2);
  const std::shared_ptr<ProcessSource> source = open("plain", 2);
  Loader loader{source, options_of(5, 3), 1, true};
  std::vector<std::uint64_t> found;
  for (int pass = 0; pass < 2; ++pass) {
    Epoch epoch = loader.epoch(pass);
    for (const std::int64_t workers : {3, 1, 2}) {
      found.push_back(digest(*epoch.next()));
      source->set_workers(workers);
      EXPECT_EQ(source->statistics().workers, workers);
    }
    EXPECT_FALSE(epoch.next());
  }
  EXPECT_EQ(found, expected);
  source->set_workers(1);
  EXPECT_LE(source->statistics().processes.size(), 1U);
  error_of(ErrorCode::invalid_argument, [&] { source->set_workers(0); });
}

TEST_F(ProcessSourceTest, WorkersLiveThroughEpochs) {
  const std::shared_ptr<ProcessSource> source = open("tells served", 1);
  const auto processes = source->statistics().processes;
  ASSERT_EQ(processes.size(), 1U);
  EXPECT_NE(processes[0], ::getpid());
  {
    Loader loader{source, options_of(12, 1), 1, true};
    for (int epoch = 0; epoch < 5; ++epoch) digests(loader.epoch(epoch));
  }
  EXPECT_EQ(source->statistics().started, 1);
  EXPECT_EQ(source->statistics().processes, processes);
  EXPECT_EQ(read_sample(*source, 0).image().bytes[0], 61) << "its state is what 60 samples made of it";
}

TEST_F(ProcessSourceTest, WorkersThatAreEndedBetweenEpochsAreStartedAnew) {
  const std::shared_ptr<ProcessSource> source = open("tells served", 2);
  for (int epoch = 1; epoch <= 3; ++epoch) {
    ASSERT_EQ(source->statistics().processes.size(), 2U);
    EXPECT_EQ(source->statistics().started, 2 * epoch);
    EXPECT_EQ(read_sample(*source, 0).image().bytes[0], 1) << "nothing is left of the epoch before";
    source->end_workers();
    EXPECT_TRUE(source->statistics().processes.empty());
    source->start_workers();
    source->start_workers();  // All live already.
  }
  source->end_workers();
  EXPECT_EQ(read_sample(*source, 0).image().bytes[0], 1) << "one starts where it is needed";
  EXPECT_EQ(source->statistics().started, 9);
  EXPECT_EQ(source->statistics().died, 0);
}

TEST_F(ProcessSourceTest, ManyThreadsReadAtATime) {
  const auto source = open("plain", 3);
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&] {
        Sample sample;
        for (int i = 0; i < 120; ++i) {
          source->read(i % 12, sample);
          const auto pixels = sample.image().bytes;
          if (pixels.size() != 16 || pixels[15] != i % 12 || sample.label() != i % 12 % 3) ++wrong;
        }
      });
    }
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(source->statistics().started, 3);
}

TEST_F(ProcessSourceTest, EveryWorkerGetsThePayload) {
  const std::string text = "sixteen letters.";
  const ProcessSource source{options("tells payload"), std::as_bytes(std::span{text})};
  const auto read = [&source](std::int64_t index) {
    const Sample sample = read_sample(source, index);
    return std::string(sample.image().bytes.begin(), sample.image().bytes.end());
  };
  EXPECT_EQ(read(0), text);
  EXPECT_EQ(read(1), text);
}

TEST_F(ProcessSourceTest, AWorkerThatDiesIsReplacedAndItsSampleReadOnceMore) {
  const std::shared_ptr<ProcessSource> source = open("dies once");
  EXPECT_EQ(all_batches(source, 2), all_batches(open("plain"), 2));
  const WorkerStatistics now = source->statistics();
  EXPECT_EQ(now.died, 1);
  EXPECT_EQ(now.started, 3);
  ASSERT_EQ(now.deaths.size(), 1U);
  EXPECT_THAT(now.deaths[0], AllOf(HasSubstr("was killed by SIGKILL"), HasSubstr("test[5]")));
}

TEST_F(ProcessSourceTest, OneThatDiesWhileOthersWaitForItIsReplacedByOneAlone) {
  for (int trial = 0; trial < 5; ++trial) {
    const TemporaryFolder temporary;
    ProcessSourceOptions wanted = options("dies once", 1);
    wanted.command[5] = temporary.path().string();
    const ProcessSource source{wanted, std::span<const std::byte>{}};
    {
      std::vector<std::jthread> threads;
      for (int t = 0; t < 8; ++t) {
        threads.emplace_back([&] {
          for (int i = 0; i < 12; ++i) EXPECT_EQ(read_sample(source, i).image().bytes[15], i);
        });
      }
    }
    const WorkerStatistics now = source.statistics();
    EXPECT_EQ(now.died, 1);
    EXPECT_EQ(now.started, 2);
    EXPECT_EQ(now.processes.size(), 1U);
  }
}

TEST_F(ProcessSourceTest, ASecondDeathIsTheSamplesError) {
  EXPECT_THAT(error_on_five(ErrorCode::corrupt_data, "dies"),
              AllOf(HasSubstr("test[5]"), HasSubstr("two worker processes"), HasSubstr("was killed by SIGKILL")));
  EXPECT_THAT(error_on_five(ErrorCode::corrupt_data, "exits"), HasSubstr("ended with exit status 3"));
}

TEST_F(ProcessSourceTest, ASampleThatKillsObeysOnCorrupt) {
  DataOptions how = options_of(4, 2);
  how.on_corrupt = OnCorrupt::zero;
  Loader loader{open("dies"), how, 1, false};
  Epoch epoch = loader.epoch(0);
  std::vector<std::uint8_t> valid;
  while (const auto batch = epoch.next()) {
    for (const std::byte byte : batch->field("valid").bytes) valid.push_back(std::to_integer<std::uint8_t>(byte));
  }
  EXPECT_EQ(valid, (std::vector<std::uint8_t>{1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1}));
  ASSERT_EQ(loader.corrupt_samples().size(), 1U);
  EXPECT_THAT(loader.corrupt_samples()[0].reason, HasSubstr("SIGKILL"));
}

TEST_F(ProcessSourceTest, WorkersThatDieWhileTheyWaitCostNothing) {
  const auto source = open("plain", 3);
  for (const pid_t process : source->statistics().processes) ::kill(process, SIGKILL);
  for (std::int64_t i = 0; i < 12; ++i) EXPECT_EQ(read_sample(*source, i).image().bytes[0], i);
}

TEST_F(ProcessSourceTest, AHangIsEndedByTheTimeout) {
  ProcessSourceOptions how = options("hangs once", 1);
  // The limit is for the start of a worker, too, which may take longer where other programs have the cores.
  for (const auto& [limit, told] : {std::pair{2500, "worker_timeout_s = 2.5 s"}, {90'000, "worker_timeout_s = 90 s"}}) {
    how.timeout = std::chrono::milliseconds(limit);
    std::filesystem::remove(folder_ / "hung");
    try {
      const ProcessSource source{how, {}};
      EXPECT_EQ(read_sample(source, 5).image().bytes[0], 5);
      const WorkerStatistics now = source.statistics();
      ASSERT_EQ(now.died, 1);
      EXPECT_THAT(now.deaths[0], AllOf(HasSubstr(told), HasSubstr("test[5]")));
      return;
    } catch (const Error& error) {
      ASSERT_EQ(limit, 2500) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(told));
    }
  }
}

TEST_F(ProcessSourceTest, AnEpochThatIsGivenUpInterruptsAHang) {
  const std::shared_ptr<ProcessSource> source = open("hangs");
  DataOptions how = options_of(1, 1);
  how.shuffle = false;
  Loader loader{source, how, 1, true};
  {
    Epoch epoch = loader.epoch(0);
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(epoch.next());
  }
  EXPECT_EQ(source->statistics().died, 0) << "it was killed by us";
}

TEST_F(ProcessSourceTest, WhatTheWorkersCodeSaysIsTheSamplesError) {
  EXPECT_THAT(error_on_five(ErrorCode::corrupt_data, "raises"),
              AllOf(HasSubstr("test[5]: ValueError: bad water"), HasSubstr("line 7")));
  EXPECT_THAT(error_on_five(ErrorCode::corrupt_data, "raises junk"), testing::EndsWith("test[5]: ValueError: "));
  EXPECT_THAT(error_on_five(ErrorCode::corrupt_data, "raises much"), HasSubstr("test[5]"));
}

TEST_F(ProcessSourceTest, NonsenseIsNamedAndItsWorkerKilled) {
  EXPECT_THAT(error_on_five(ErrorCode::corrupt_data, "too many bytes"), HasSubstr("1099511627776 bytes"));
  EXPECT_THAT(error_on_five(ErrorCode::corrupt_data, "negative bytes"), HasSubstr("-1 bytes"));
  EXPECT_THAT(error_on_five(ErrorCode::corrupt_data, "few bytes"), HasSubstr("100 bytes of fields"));
  EXPECT_THAT(error_on_five(ErrorCode::corrupt_data, "other sample"), HasSubstr("about sample 6"));
  EXPECT_THAT(error_on_five(ErrorCode::corrupt_data, "other kind"), HasSubstr("kind 77"));
  EXPECT_THAT(error_on_five(ErrorCode::corrupt_data, "short"), HasSubstr("no message"));
  EXPECT_THAT(error_on_five(ErrorCode::corrupt_data, "closes"), HasSubstr("closed its control socket"));
}

TEST_F(ProcessSourceTest, GivesEveryField) {
  const auto source = open("boxes");
  EXPECT_EQ(source->info().schema.text(), "boxes float32 (-1, 2); name uint8 (-1) text");
  EXPECT_EQ(stored_shape(source->info().schema).height, 0);
  for (const std::int64_t index : {0, 7, 11}) {
    const Sample sample = read_sample(*source, index);
    EXPECT_EQ(sample[0].extents[0], index);
    EXPECT_EQ(std::ssize(sample[0].bytes), 8 * index);
    EXPECT_EQ(std::ssize(sample[1].bytes), index);
  }
  const auto expected = all_batches(open("boxes", 1), 0);
  EXPECT_EQ(expected.size(), 6U);
  EXPECT_EQ(all_batches(open("boxes", 7), 7), expected);
}

TEST_F(ProcessSourceTest, AWorkerWhoseFieldsMakeNoSenseIsKilled) {
  const auto error = [this](const std::string& mode) {
    const std::shared_ptr<ProcessSource> source = open(mode);
    Sample sample{2};
    const std::string text = error_of(ErrorCode::corrupt_data, [&] { source->read(5, sample); });
    EXPECT_EQ(source->statistics().died, 2) << mode;
    source->read(6, sample);
    EXPECT_EQ(sample[0].extents[0], 6) << "the next sample is read as if nothing had been";
    return text;
  };
  EXPECT_THAT(error("boxes fall"), AllOf(HasSubstr("test[5]"), HasSubstr("field boxes: its bytes begin at 120")));
  EXPECT_THAT(error("boxes flat"), HasSubstr("field boxes: its bytes begin at 130; wanted 128"));
  EXPECT_THAT(error("boxes change"), HasSubstr("field boxes: float64 (5, 2); wanted float32 (-1, 2)"));
  EXPECT_THAT(error("boxes overflow"), HasSubstr("field boxes: "));
  EXPECT_THAT(error("boxes giant"), HasSubstr("field boxes: "));
}

TEST_F(ProcessSourceTest, WhatAFieldHoldsIsJudgedWhenItIsLoaded) {
  Loader loader{open("boxes latin"), options_of(4, 2), 1, false};
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { digests(loader.epoch(0)); }),
              HasSubstr("test[5]: field name: byte 0 of 5, 0xE9, is not UTF-8"));
}

TEST_F(ProcessSourceTest, SamplesThatAreNotWhatWasToldAreRefused) {
  const auto error = [this](const std::string& mode) {
    Loader loader{open(mode), options_of(12, 1), 1, false};
    return error_of(ErrorCode::corrupt_data, [&] { loader.epoch(0).next(); });
  };
  EXPECT_THAT(error("label"), AllOf(HasSubstr("test[5]"), HasSubstr("label 3; wanted 0 to 2")));
  EXPECT_THAT(error("shape"), AllOf(HasSubstr("test[5]"), HasSubstr("5 x 4")));
  EXPECT_THAT(error("bytes"), AllOf(HasSubstr("test[5]"), HasSubstr("15 bytes of pixels; wanted 16")));
}

TEST_F(ProcessSourceTest, AWorkerThatDoesNotStartIsNamed) {
  EXPECT_THAT(error_at_start(ErrorCode::internal, "exits at start"), HasSubstr("ended with exit status 4 before"));
  EXPECT_THAT(error_at_start(ErrorCode::invalid_argument, "refuses"), HasSubstr("no module named water"));
  EXPECT_THAT(error_at_start(ErrorCode::internal, "other protocol"),
              HasSubstr("speaks format 1 of the protocol, in a message of kind 1; wanted 2 and 1"));
  EXPECT_THAT(error_at_start(ErrorCode::internal, "no schema"), HasSubstr("no description of fields"));
  EXPECT_THAT(error_at_start(ErrorCode::internal, "much schema"), HasSubstr("fields in 1099511627776 bytes"));
  EXPECT_THAT(error_at_start(ErrorCode::internal, "two of one name"), HasSubstr("x"));
  EXPECT_THAT(error_at_start(ErrorCode::invalid_argument, "negative"), HasSubstr("-1 samples"));
  ProcessSourceOptions how = options("mute");
  how.timeout = std::chrono::milliseconds(500);
  EXPECT_THAT(error_of(ErrorCode::internal, [&] { ProcessSource(how, {}); }), HasSubstr("worker_timeout_s = 0.5 s"));
  how.command = {"/nowhere/worker"};
  EXPECT_THAT(error_of(ErrorCode::internal, [&] { ProcessSource(how, {}); }), HasSubstr("/nowhere/worker"));
  how = options("mute");
  how.while_starting = [] { fail(ErrorCode::cancelled, "test: enough"); };
  error_of(ErrorCode::cancelled, [&] { ProcessSource(how, {}); });
}

TEST_F(ProcessSourceTest, WorkersThatTellDifferentThingsAreRefused) {
  const auto source = open("changing", 1);
  EXPECT_EQ(read_sample(*source, 0).image().bytes[0], 0);
  ::kill(source->statistics().processes[0], SIGKILL);
  EXPECT_THAT(error_of(ErrorCode::internal, [&] { read_sample(*source, 0); }),
              AllOf(HasSubstr("tells 11 samples"), HasSubstr("another one told 12")));
}

TEST_F(ProcessSourceTest, WorkersThatFindDifferentFieldsAreRefusedByFieldAndWithAdvice) {
  const auto source = open("boxes differ", 1);
  EXPECT_EQ(read_sample(*source, 0)[0].extents[0], 0);
  ::kill(source->statistics().processes[0], SIGKILL);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { read_sample(*source, 0); }),
              AllOf(HasSubstr("found a field boxes float32 (3, 2) where another one found boxes float32 (-1, 2)"),
                    HasSubstr("fields= says what they are")));
}

TEST_F(ProcessSourceTest, SizesMayVaryWhereATransformMakesThemOne) {
  ProcessSourceOptions how = options("shape");
  how.sizes_vary = true;
  const auto source = std::make_shared<ProcessSource>(how, std::span<const std::byte>{});
  EXPECT_EQ(stored_shape(source->info().schema).height, 0);
  DataOptions loading = options_of(5, 1);
  loading.transform.size = 2;
  Loader loader{source, loading, 1, false};
  Epoch epoch = loader.epoch(0);
  const auto batch = epoch.next();
  ASSERT_TRUE(batch);
  EXPECT_EQ(batch->field("image").shape, (std::vector<std::int64_t>{5, 1, 2, 2}));
  const auto* pixels = reinterpret_cast<const float*>(batch->field("image").bytes.data());
  EXPECT_FLOAT_EQ(pixels[4 * 4], 4.0F / 255);
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { epoch.next(); }), HasSubstr("16 bytes of pixels; wanted 20"));
}

TEST_F(ProcessSourceTest, NoWorkerOutlivesAProcessThatIsKilled) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Descriptor reading_end{ends[0]};
  const pid_t parent = ::fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    const auto source = open("plain", 3);
    read_sample(*source, 0);
    const auto processes = source->statistics().processes;
    const ssize_t told = ::write(ends[1], processes.data(), processes.size() * sizeof(pid_t));
    ::kill(::getpid(), told == 12 ? SIGKILL : SIGABRT);
  }
  ::close(ends[1]);
  int status = 0;
  ASSERT_EQ(::waitpid(parent, &status, 0), parent);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  pid_t workers[3] = {};
  ASSERT_EQ(::read(reading_end.number(), workers, sizeof workers), 12);
  for (const pid_t worker : workers) {
    const Descriptor watch{static_cast<int>(::syscall(SYS_pidfd_open, worker, 0))};
    pollfd ended{.fd = watch.number(), .events = POLLIN, .revents = 0};
    EXPECT_TRUE(watch.number() < 0 || ::poll(&ended, 1, 60'000) == 1) << worker;
  }
}

}  // namespace
}  // namespace headrace
