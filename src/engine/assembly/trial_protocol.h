// What a process of a trial and the process that started it say to each other: `ready` or `failed` once, then an answer
// to each question until the socket closes. Messages are exec's ControlMessage; numbers that are not named are 0. What
// is larger lies at the front of the slot when the message is sent: seconds as doubles, texts as UTF-8.
//
// Both are the same executable; the format is told all the same, as one may have been replaced meanwhile.
#pragma once

#include <cstdint>
#include <string_view>

namespace headrace::trial {

inline constexpr int kControl = 3;  // A socket, SOCK_SEQPACKET.
inline constexpr int kRecipe = 4;   // A TOML document.
inline constexpr int kSlot = 5;     // Shared memory, of kSlotBytes.

// As the key of an argument: the file of the tuner's index for trials (Training::use_trial_index).
inline constexpr std::string_view kIndexKey = "trial.index";

inline constexpr std::int64_t kFormat = 1;
inline constexpr std::int64_t kStepsMax = std::int64_t{1} << 16;  // Of one question.
inline constexpr std::int64_t kSlotBytes = kStepsMax * static_cast<std::int64_t>(sizeof(double));
inline constexpr std::int64_t kTextMax = 4096;  // Bytes; more is cut off.

enum Kind : std::uint32_t {
  ready = 1,   // From the child: kFormat. Its state is that in which every later `run` may begin.
  run = 2,     // To the child: steps, and whether they begin in that state (1) or where it stands (0).
  ran = 3,     // From the child: steps. The seconds of each lie in the slot.
  hash = 4,    // To the child: what is the hash of your state?
  hashed = 5,  // From the child: the hash.
  failed = 6,  // From the child, which then ends: an ErrorCode, bytes of text in the slot.
};

}  // namespace headrace::trial
