// What a worker process and the process that reads from it say to each other. A worker may be written in any language:
// it is started with the three descriptors below, says `ready` or `failed` once, then answers each `read` by `sample`
// or `failed` until the control socket closes. It has stdout and stderr for itself.
//
// Messages are exec's ControlMessage: 64 bytes, little-endian, u32 kind, u32 zero, seven i64. What is larger lies at
// the front of the slot when the message is sent: the image, the labels, the text. The slot's size is fixed, and a
// descriptor's size is that of its file (fstat); map the payload or use pread, as its offset is shared by all workers.
#pragma once

#include <cstdint>

namespace headrace::worker {

inline constexpr int kControl = 3;  // A socket, SOCK_SEQPACKET.
inline constexpr int kSlot = 4;     // Shared memory, the worker's own.
inline constexpr int kPayload = 5;  // Shared memory with what the workers were given to start with; read it only.

// In the worker's environment: its place among those that live, from 0. A worker takes that of the one it replaces.
inline constexpr const char* kPlaceVariable = "HEADRACE_WORKER";

inline constexpr std::int64_t kFormat = 1;
inline constexpr std::int64_t kUnknown = -1;                      // Classes that only reading shows.
inline constexpr std::int64_t kTextMax = std::int64_t{64} << 10;  // Bytes of a text, UTF-8; more is cut off.

enum Kind : std::uint32_t {
  // From the worker: kFormat, samples, classes or kUnknown, height and width of every image or 0 and 0, channels,
  // labels in the slot (i64 each): one a sample, or 0.
  ready = 1,
  // To the worker: the sample's index.
  read = 2,
  // From the worker: index, bytes in the slot, ImageForm (0 pixels, 1 encoded), height, width, channels, label.
  sample = 3,
  // From the worker: index (-1 instead of `ready`), bytes of text in the slot: "ValueError: ...", then what else helps.
  failed = 4,
};

}  // namespace headrace::worker
