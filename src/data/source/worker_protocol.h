// What a worker process and the process that reads from it say to each other. A worker may be written in any language:
// it is started with the three descriptors below, says `ready` or `failed` once, then answers each `read` by `sample`
// or `failed` until the control socket closes. It has stdout and stderr for itself.
//
// Messages are exec's ControlMessage: 64 bytes, little-endian, u32 kind, u32 zero, seven i64, of which those not named
// below are 0. What is larger lies at the front of the slot when the message is sent: the fields, the labels, the
// sample, the text. The slot's size is fixed, and a descriptor's size is that of its file (fstat); map the payload or
// use pread, as its offset is shared by all workers.
#pragma once

#include <cstdint>

namespace headrace::worker {

inline constexpr int kControl = 3;  // A socket, SOCK_SEQPACKET.
inline constexpr int kSlot = 4;     // Shared memory, the worker's own.
inline constexpr int kPayload = 5;  // Shared memory with what the workers were given to start with; read it only.

// In the worker's environment: its place among those that live, from 0. A worker takes that of the one it replaces.
inline constexpr const char* kPlaceVariable = "HEADRACE_WORKER";

inline constexpr std::int64_t kFormat = 2;                        // Of another one a worker is refused.
inline constexpr std::int64_t kUnknown = -1;                      // Classes that only reading shows.
inline constexpr std::int64_t kTextMax = std::int64_t{64} << 10;  // Bytes of a text, UTF-8; more is cut off.

enum Kind : std::uint32_t {
  // From the worker: kFormat, samples, classes or kUnknown, bytes of the fields' description in the slot, as
  // schema_bytes() gives it, and labels behind it (i64 each): one a sample where there is a class, or 0. Behind them as
  // many bytes as the next number says: how a sample's fields are put together, which ProcessSource::form() tells, or
  // 0.
  ready = 1,
  // To the worker: the sample's index.
  read = 2,
  // From the worker: index, bytes in the slot: the sample's fields, as FieldBytes writes them.
  sample = 3,
  // From the worker: index (-1 instead of `ready`), bytes of text in the slot: "ValueError: ...", then what else helps.
  failed = 4,
};

}  // namespace headrace::worker
