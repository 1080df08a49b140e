// What the tuner may try, as one table for all doors: `headrace tune` on a recipe, hr.tune on a user's own objects, and
// hr.autotune on these while their run goes on.
//
// A knob is a file with a function that gives it, and a line in knobs.inc. Elsewhere it needs its option's field and
// line of describe(), and what applies it: Training or Python, which hold the objects; where it is of the whole
// process, engine/assembly/process_settings.cpp and python/headrace/_settings.py.
#pragma once

#include <headrace/report.h>
#include <headrace/tune.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/advice/data_context.h"
#include "app/recipe/recipe.h"
#include "core/hardware/machine.h"

namespace headrace {

// Name of the candidate that needs Training::make_trial_index().
inline constexpr std::string_view kIndexCandidate = "entropy index";

enum class Door { recipe, python };

// Of the loop that Python's door was given.
enum class LoaderKind { headrace, headrace_processes, torch, other };

// What a knob may ask about a job. Made by the door.
struct KnobContext {
  Door door = Door::recipe;
  Recipe recipe;  // The job as written; of Python's objects what they have of it, the rest by default.
  std::int64_t cores = 1;
  DataContext data;
  // By key: why not, where the door alone can know ("parameters share memory"); and by key and value as TOML text,
  // where it rules out one value and not the others.
  std::map<std::string, std::string, std::less<>> refused;
  std::map<std::pair<std::string, std::string>, std::string> refused_values;

  // Of Python's door alone.
  LoaderKind loader = LoaderKind::headrace;
  std::string loader_type;                // Its class, for a person.
  std::optional<std::int64_t> run_steps;  // nullopt: not known.
  bool drops_out = false;                 // The model draws what it drops.
  bool workers_change_batches = false;    // Another number of worker processes brings other batches.
  bool has_replacement = false;           // A headrace.Loader can stand for the DataLoader,
  bool replacement_draws = false;         // which draws order or transforms by itself.
  // The run goes on while it is tuned: only what switches between two of its updates, and pays from then on, is
  // offered, and in the order of ORCH-12: what the process computes with, the data pipeline, the training loop, the
  // model.
  bool live = false;

  bool is_headrace() const { return loader == LoaderKind::headrace || loader == LoaderKind::headrace_processes; }
  std::string no_dataloader() const { return "the loader is a " + loader_type + ", not a DataLoader"; }
};

struct KnobValue {
  std::string name, sentence;  // As a Candidate's.
  Settings changes;
  std::optional<NumericClass> numerics{};  // Where it is not the knob's,
  std::string_view resource{};             // likewise.
  double late_share = 0;
  bool changes_batches = false;  // As a Candidate's, where the knob does not say so of all its values.
};

struct Knob {
  std::string_view key;
  std::string_view name;  // Of the first candidate, or what is common to the names of all.
  // A reason for a person; empty: there are values to try.
  std::string (*not_applicable)(const KnobContext&);
  // Those that are not in force, in the order to try them. Asked where it is applicable.
  std::vector<KnobValue> (*values)(const KnobContext&);
  NumericClass numerics = NumericClass::rounding;
  std::string_view resource;  // That the diagnosis must have named; empty: whichever it names.
  Switches switches = Switches::live_step;
  double prepare_s = 0, switch_s = 0;  // As a Candidate's.
  std::vector<std::string> excludes{};
  bool carries_over = false;
  bool changes_batches = false;
  bool keeps_both = false;     // Once it is prepared, a live run switches between both forms from step to step.
  bool python = false;         // It has no TOML option: Python's door applies it.
  bool divides_cores = false;  // It changes how many threads or processes work, and nothing else.
};

// In the order of their promise, Candidate::promise_rank: what gained most where it was measured (docs/measured), but
// the fused optimizer after what shrinks the rest of a step, and the division of the cores behind it. It is the order
// to try them, but in a live run.
const std::vector<Knob>& all_knobs();

// Whether a process must start with this setting: TrainingJob::configure() cannot make it hold.
bool needs_new_process(std::string_view key);

struct Offer {
  // Those that relieve `bound` first, and last what needs a new process, as whatever is tried beside a kept one of
  // these needs two, too; of a live run in its own order.
  std::vector<Candidate> candidates;
  std::vector<Report::NotTried> not_tried;  // Of every other knob, why.
};

Offer offer(const KnobContext& context, std::string_view bound);

// Of a recipe; `data` is Training::data_context().
KnobContext context_of(const Recipe& recipe, const Machine& machine, const DataContext& data);

}  // namespace headrace
