#include "app/cli/arguments.h"

#include <headrace/option_fields.h>
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <array>
#include <deque>
#include <memory>

#include "app/cli/compare_arguments.h"
#include "app/cli/flag_number.h"
#include "app/recipe/recipe.h"
#include "core/base/build_info.h"
#include "core/base/fail.h"
#include "core/base/nearest_name.h"
#include "core/hardware/machine.h"

namespace headrace {
namespace {

struct Verb {
  const char* name;
  const char* sentence;
  bool takes_recipe_flags;
};

constexpr std::array kVerbs{
    Verb{"train", "Train the recipe's model and test it; checkpoints go to the run folder.", true},
    Verb{"eval", "Test a checkpoint on the recipe's test data.", true},
    Verb{"profile", "Measure where the time of a training step goes; change nothing.", true},
    Verb{"tune", "Try one change at a time, keep what is faster and numerically the same, then train with it.", true},
    Verb{"compare", "Run two recipes, scripts, builds or commits in pairs, and say whether the new one is worse.",
         false},
    Verb{"explain", "Show each key's value, where it came from, its range and what it does.", true},
    Verb{"pack", "Put a data set into one file, check or unpack one, or index a folder of photographs.", false},
    Verb{"doctor", "Look at this machine, or at the files of a finished run.", false},
};

constexpr const char* kExitCodes =
    "Exit codes: 0 done, 1 failed, 2 used wrongly, 3 the verdict is negative (eval: below eval.at_least; tune: not "
    "faster;\n"
    "compare: worse, wrong or missing; doctor: a finding), 130 and 143 stopped by Ctrl-C and SIGTERM; of train\n"
    "report.alerts.exit_code, where an alert was raised.\n";

[[noreturn]] void usage(const std::string& message, const std::string& verb = "") {
  fail(ErrorCode::invalid_argument, "{} (see headrace {}--help)", message, verb.empty() ? "" : verb + " ");
}

std::string did_you_mean(const std::string& nearest) {
  return nearest.empty() ? "" : ", did you mean " + nearest + "?";
}

std::string overview() {
  std::string text =
      "Headrace measures a training job, changes one thing at a time, and keeps what is faster and right.\n\n"
      "Usage: headrace VERB RECIPE [flags]\n"
      "       headrace tune --data DIR --model NAME [flags]\n"
      "       headrace compare OLD NEW [flags]\n\n";
  for (const Verb& verb : kVerbs) text += fmt::format("  {:<9} {}\n", verb.name, verb.sentence);
  text +=
      "\n  headrace VERB --help lists the verb's flags; every recipe key is one: --data.batch_size 512\n"
      "  headrace --version says what this build is\n\n";
  return text + kExitCodes;
}

std::string version_text(const std::string& torch_version) {
  const BuildInfo& build = build_info();
  std::string sets;
  for (const std::string& set : detect_machine().instruction_sets) sets += (sets.empty() ? "" : " ") + set;
  return fmt::format("headrace {}\ncommit {}\ncompiler {}\npreset {}\ntorch {}\ninstruction sets {}\n", build.version,
                     build.commit, build.compiler, build.preset, torch_version, sets.empty() ? "unavailable" : sets);
}

// Two columns; the second is wrapped, which CLI11's own formatter does not do, and keeps the line breaks it has.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    std::string out = "  " + make_option_name(option, is_positional) + make_option_opts(option);
    bool beside_name = out.size() < kNames;
    for (const std::string& line : wrapped(make_option_desc(option))) {
      out += (beside_name ? std::string(kNames - out.size(), ' ') : "\n" + std::string(kNames, ' ')) + line;
      beside_name = false;
    }
    return out + "\n";
  }

  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> options) const override {
    std::string out = "\n" + group + ":\n";
    for (const CLI::Option* option : options) out += make_option(option, is_positional);
    return out;
  }

  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode) const override {
    std::string out = app->get_description() + "\n\n" + make_usage(app, name) + make_positionals(app);
    for (const std::string& group : app->get_groups()) {
      const auto options = app->get_options(
          [&group](const CLI::Option* option) { return option->get_group() == group && option->nonpositional(); });
      if (!options.empty()) out += make_group(group, false, options);
    }
    return out + "\n" + app->get_footer();
  }

 private:
  static constexpr std::size_t kNames = 36, kSentences = 76;

  static std::vector<std::string> wrapped(const std::string& text) {
    std::vector<std::string> lines{""};
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find_first_of(" \n", begin), text.size());
      const std::string word = text.substr(begin, end - begin);
      const bool breaks = begin > 0 && text[begin - 1] == '\n';
      if (breaks || (!lines.back().empty() && lines.back().size() + 1 + word.size() > kSentences)) lines.emplace_back();
      lines.back() += (lines.back().empty() ? "" : " ") + word;
      begin = end + 1;
    }
    return lines;
  }
};

// One verb's flags, and the texts that CLI11 puts their values into.
class VerbLine {
 public:
  explicit VerbLine(const Verb& verb)
      : verb_(verb), app_(verb.sentence, fmt::format("headrace {}", verb.name)), fields_(fields_of(recipe_)) {
    app_.formatter(std::make_shared<HelpFormatter>());
    app_.get_formatter()->label("REQUIRED", "(needed)");
    app_.get_formatter()->label("OPTIONS", "flags");
    app_.set_help_flag("-h,--help", "Print this and exit.");
    app_.footer(kExitCodes);
    add_positionals();
    add_verb_flags();
    add_flags_of_every_verb();
    if (verb.takes_recipe_flags) add_recipe_flags();
  }

  std::variant<Invocation, Answer> parse(std::vector<std::string> arguments) {
    refuse_unknown_flags(arguments);
    if (compare_) take_compared_words(arguments);
    std::vector<std::string> reversed;  // As CLI11 wants them.
    for (auto argument = arguments.rbegin(); argument != arguments.rend(); ++argument) {
      const bool empty_value = argument->rfind("--", 0) == 0 && argument->find('=') == argument->size() - 1;
      if (empty_value) reversed.emplace_back();  // CLI11 takes "--key=" for a key without a value.
      reversed.push_back(empty_value ? argument->substr(0, argument->size() - 1) : *argument);
    }
    try {
      app_.parse(std::move(reversed));
    } catch (const CLI::CallForHelp&) {
      return Answer{app_.help(), kExitDone};
    } catch (const CLI::ParseError& error) {
      usage(fmt::format("{}: {}", verb_.name, error.what()), verb_.name);
    }
    return invocation();
  }

 private:
  bool is(std::string_view name) const { return name == verb_.name; }

  void add_positionals() {
    if (is("compare")) {
      compare_ = std::make_unique<CompareFlags>(app_);
    } else if (is("doctor")) {
      app_.add_option(
          "run", recipe_path_,
          "A run folder, or the JSON of a performance optimizer's summary; without it, the machine is looked "
          "at.");
    } else if (is("explain")) {
      app_.add_option("recipe", recipe_path_, "A TOML recipe; without it, the defaults are shown.");
      app_.add_option("key", key_, "One key, e.g. data.batch_size.");
    } else if (is("pack")) {
      app_.add_option(
              "source", pack_.source,
              "folder:DIR, list:FILE, idx:DIR or csv:FILE, as data.source names it, or DIR alone; for --verify and "
              "--unpack a pack.")
          ->required();
      app_.add_option("target", pack_.target, "The new pack: a file, or with --shard-mib a folder; or the new folder.");
    } else if (is("tune")) {
      app_.add_option("recipe", recipe_path_, "A TOML recipe; in its place --data and --model will do.");
    } else {
      app_.add_option("recipe", recipe_path_, "A TOML recipe.")->required();
    }
  }

  // What stands behind "--" is for what is compared, and no flag.
  void take_compared_words(std::vector<std::string>& arguments) {
    const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
    if (dashes == arguments.end()) return;
    compared_words_.assign(dashes + 1, arguments.end());
    arguments.erase(dashes, arguments.end());
  }

  CLI::Option* add_text(const std::string& flag, const std::string& type, const std::string& sentence) {
    std::string& slot = texts_.emplace_back();
    return app_.add_option(flag, slot, sentence)
        ->type_name(type)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }

  void add_verb_flags() {
    if (is("train")) app_.add_flag("--resume", resume_, "Go on from the newest whole checkpoint of the run folder.");
    if (is("eval")) {
      checkpoint_ =
          add_text("--checkpoint", "FILE",
                   "A checkpoint, a file of weights alone (safetensors or .pt), or a run folder for its newest "
                   "checkpoint.")
              ->required();
    }
    if (is("profile")) {
      steps_ = add_text("--steps", "NUMBER", "Steps to measure, 1 to 100000 (default 60).");
      trace_form_ =
          add_text("--trace-form", "NAME",
                   "Write the trace as perfetto | folded | csv | jsonl, too (default chrome: trace.json alone).")
              ->check(CLI::IsMember({"chrome", "perfetto", "folded", "csv", "jsonl"}).description(""));
    }
    if (is("tune")) {
      data_ = add_text("--data", "DIR",
                       "Make the recipe from what lies there: images in DIR/train/CLASS or DIR/CLASS, IDX files, or "
                       "packs. Says what it assumes, tunes, and trains nothing.");
      model_ = add_text("--model", "NAME", "With --data: the network, as model.name has it.");
    }
    if (is("pack")) add_pack_flags();
    if (is("explain")) {
      CLI::Option* markdown = app_.add_flag("--markdown", markdown_, "Print docs/options.md instead.");
      app_.add_flag("--schema", schema_, "Print docs/recipe.schema.json instead.")->excludes(markdown);
    }
  }

  void add_pack_flags() {
    CLI::Option* index =
        app_.add_flag("--index", index_, "Only write DIR/.headrace-index, which the loader uses; the images stay.");
    CLI::Option* verify =
        app_.add_flag("--verify", verify_, "Read a whole pack and check every sample.")->excludes(index);
    app_.add_flag("--unpack", unpack_, "Write what is in a pack to a new folder.")->excludes(index)->excludes(verify);
    form_ =
        add_text("--form", "NAME",
                 "stored | raw | lz4: samples as they are (default), their pixels, or these compressed without loss.")
            ->check(CLI::IsMember({"stored", "raw", "lz4"}).description(""));
    short_side_ = add_text("--short-side", "NUMBER",
                           fmt::format("With raw or lz4: larger images are resized until their shorter side has so "
                                       "many pixels, 1 to {}.",
                                       kPackShortSideMax));
    app_.add_flag("--append", pack_.append, "Add to a pack what it lacks of the source, by name.");
    shard_mib_ =
        add_text("--shard-mib", "NUMBER", "Begin a new file after so many MiB, 1 to 1048576; the target is a folder.");
    threads_ = add_text("--threads", "NUMBER", "1 to 256 (default: one a core).");
  }

  // A recipe, or what takes its place.
  void require_one_job(const Invocation& invocation) const {
    const bool has_data = invocation.data.has_value(), has_model = model_->count() > 0;
    if (invocation.recipe.empty() && !has_data && !has_model) {
      usage("tune: recipe is required, or --data DIR and --model NAME in its place", "tune");
    }
    if (!invocation.recipe.empty() && (has_data || has_model)) {
      usage(fmt::format("tune: {} is a recipe, and --{} is for a job without one; wanted one of them",
                        invocation.recipe.string(), has_data ? "data" : "model"),
            "tune");
    }
    if (!has_data) usage("tune: --model needs --data DIR", "tune");
    if (!has_model) usage("tune: --data needs --model NAME (headrace explain model.name lists them)", "tune");
    if (invocation.data->empty()) usage("tune: --data is empty; wanted a folder", "tune");
    if (invocation.model.empty()) usage("tune: --model is empty; wanted the name of a network", "tune");
  }

  PackArguments pack_arguments() const {
    PackArguments pack = pack_;
    pack.action = index_    ? PackAction::index
                  : verify_ ? PackAction::verify
                  : unpack_ ? PackAction::unpack
                            : PackAction::write;
    if (const auto text = text_of(threads_)) pack.threads = number_in("--threads", *text, 1, 256);
    if (const auto text = text_of(shard_mib_)) pack.shard_mib = number_in("--shard-mib", *text, 1, 1 << 20);
    if (const auto text = text_of(form_)) pack.form = form_named(*text);
    if (const auto text = text_of(short_side_)) {
      pack.short_side = number_in("--short-side", *text, 1, kPackShortSideMax);
      if (pack.form == PackForm::stored) usage("pack: --short-side needs --form raw or --form lz4", "pack");
    }
    const bool makes = pack.action == PackAction::write || pack.action == PackAction::unpack;
    if (is("pack") && makes == pack.target.empty()) {
      usage(makes ? "pack: a target is required" : fmt::format("pack: {} is one too many", pack.target), "pack");
    }
    const bool writes = pack.action == PackAction::write;
    if (!writes && (pack.append || pack.shard_mib > 0 || pack.form != PackForm::stored)) {
      usage("pack: --append, --shard-mib and --form are for writing", "pack");
    }
    return pack;
  }

  static PackForm form_named(const std::string& name) {
    for (const auto& choice : choices(PackForm{})) {
      if (choice.name == name) return choice.value;
    }
    return PackForm::stored;  // CLI11 has refused other names.
  }

  void add_flags_of_every_verb() {
    json_ = add_text("--json", "FILE", "Also write the result as JSON; -: to stdout, and everything else to stderr.");
    const char* out = is("explain")  ? "A run folder whose ledger says what the tuner found for each key."
                      : is("doctor") ? "The same as RUN."
                      : is("pack")   ? "Accepted as by every verb; pack writes no run folder."
                      : is("compare")
                          ? "Accepted as by every verb; compare writes no run folder (--save DIR keeps the runs)."
                      : is("eval") ? "Accepted as by every verb; eval writes no run folder."
                                   : "The run folder (default runs/<recipe>/<UTC time>).";
    out_ = add_text("--out", "DIR", out);
    app_.add_flag("--dry-run", dry_run_,
                  is("explain") || is("doctor") ? "Accepted as by every verb; this one changes nothing anyway."
                                                : "Check everything, say what would happen, run nothing.");
    log_level_ = add_text("--log-level", "LEVEL", "debug | info | warning | error (default info).")
                     ->check(CLI::IsMember({"debug", "info", "warning", "error"}).description(""));
    app_.add_flag("--quiet", quiet_, "No progress and no tables; warnings and errors stay.");
  }

  void add_recipe_flags() {
    for (const Field& field : fields_) {
      const std::size_t dot = field.key.rfind('.');
      const bool tables = field.kind == FieldKind::tables;
      const std::string value = tables ? "[]" : to_toml(field.get());
      const std::string sentence =
          fmt::format("{}\n{}{}default {}{}", field.sentence, field.range, field.range.empty() ? "" : ", ", value,
                      tables ? fmt::format("; as TOML: \"[{{name = '{}', ...}}]\"", an_element_name(field)) : "");
      CLI::Option* option = add_text("--" + field.key, type_word(field.kind), sentence);
      option->group(dot == std::string::npos ? "Recipe keys"
                                             : fmt::format("Recipe keys, [{}]", field.key.substr(0, dot)));
      recipe_flags_.emplace_back(option, field.key);
    }
  }

  // As a table of the list may be called.
  static std::string an_element_name(const Field& tables) {
    return tables.choices.empty() ? "a" : tables.choices.front();
  }

  static const char* type_word(FieldKind kind) {
    switch (kind) {
      case FieldKind::boolean:
        return "BOOL";
      case FieldKind::integer:
      case FieldKind::real:
        return "NUMBER";
      case FieldKind::choice:
        return "NAME";
      case FieldKind::integers:
      case FieldKind::reals:
        return "NUMBER,...";
      case FieldKind::texts:
        return "TEXT,...";
      case FieldKind::text:
        return "TEXT";
      case FieldKind::tables:
        return "TABLES";
    }
    return "";
  }

  // CLI11 knows what is unexpected, not what was meant.
  void refuse_unknown_flags(const std::vector<std::string>& arguments) const {
    for (const std::string& argument : arguments) {
      if (argument == "--") return;
      if (argument.rfind("--", 0) != 0) continue;
      const std::string name = argument.substr(2, argument.find('=') - 2);
      std::vector<std::string> known;
      for (const CLI::Option* option : app_.get_options()) {
        if (!option->get_lnames().empty()) known.push_back(option->get_lnames().front());
      }
      if (std::find(known.begin(), known.end(), name) != known.end()) continue;
      std::erase_if(known, [](const std::string& flag) { return flag.find('.') != std::string::npos; });
      std::string nearest = name.find('.') == std::string::npos ? nearest_name(known, name) : "";
      const bool was_key = current_name(name) != name;  // Of an earlier version.
      if (nearest.empty() && verb_.takes_recipe_flags && !was_key) nearest = nearest_key(fields_, name);
      const bool lists_keys = nearest.empty() && verb_.takes_recipe_flags && name.find('.') != std::string::npos;
      const std::string advice =
          lists_keys ? advice_on_key(fields_, name) : did_you_mean(nearest.empty() ? "" : "--" + nearest);
      usage(fmt::format("{}: unknown flag --{}{}", verb_.name, name, advice), verb_.name);
    }
  }

  static std::optional<std::string> text_of(const CLI::Option* option) {
    if (option == nullptr || option->count() == 0) return std::nullopt;
    return option->results().back();
  }

  Invocation invocation() const {
    Invocation invocation;
    invocation.verb = verb_.name;
    invocation.recipe = recipe_path_;
    invocation.key = key_;
    invocation.json = text_of(json_);
    if (const auto out = text_of(out_)) invocation.out = *out;
    if (const auto checkpoint = text_of(checkpoint_)) invocation.checkpoint = *checkpoint;
    if (const auto text = text_of(steps_)) invocation.steps = number_in("--steps", *text, 1, 100000);
    if (const auto text = text_of(trace_form_)) invocation.trace_form = trace_form_of(*text);
    if (const auto data = text_of(data_)) invocation.data = *data;
    invocation.model = text_of(model_).value_or("");
    if (is("tune") && (invocation.recipe.empty() || data_->count() + model_->count() > 0)) require_one_job(invocation);
    if (is("profile") && recipe_path_.ends_with(".py")) {
      usage(fmt::format(
                "profile: {} is a Python script; wanted a recipe, or python -m headrace profile {}, which runs it",
                recipe_path_, recipe_path_),
            "profile");
    }
    invocation.pack = pack_arguments();
    if (compare_) invocation.compare = compare_->arguments(compared_words_);
    if (const auto level = text_of(log_level_)) invocation.log_level = level_named(*level);
    invocation.dry_run = dry_run_;
    invocation.quiet = quiet_;
    invocation.resume = resume_;
    if (markdown_) invocation.explain_form = ExplainForm::markdown;
    if (schema_) invocation.explain_form = ExplainForm::schema;
    for (const auto& [option, key] : recipe_flags_) {
      if (const auto text = text_of(option)) invocation.flags.emplace_back(key, *text);
    }
    if (is("doctor") && invocation.recipe.empty() && invocation.out) invocation.recipe = *invocation.out;
    return invocation;
  }

  static LogLevel level_named(const std::string& name) {
    if (name == "debug") return LogLevel::debug;
    if (name == "warning") return LogLevel::warning;
    if (name == "error") return LogLevel::error;
    return LogLevel::info;
  }

  const Verb& verb_;
  CLI::App app_;
  Recipe recipe_;  // Defaults, for the help of recipe flags.
  std::vector<Field> fields_;
  std::deque<std::string> texts_;  // A deque: CLI11 keeps references.
  std::string recipe_path_, key_;
  PackArguments pack_;
  std::unique_ptr<CompareFlags> compare_;  // Of compare alone.
  std::vector<std::string> compared_words_;
  bool index_ = false, verify_ = false, unpack_ = false;
  bool resume_ = false, dry_run_ = false, quiet_ = false, markdown_ = false, schema_ = false;
  CLI::Option *checkpoint_ = nullptr, *steps_ = nullptr, *trace_form_ = nullptr;
  CLI::Option *threads_ = nullptr, *shard_mib_ = nullptr;
  CLI::Option *form_ = nullptr, *short_side_ = nullptr;
  CLI::Option *data_ = nullptr, *model_ = nullptr;
  CLI::Option *json_ = nullptr, *out_ = nullptr, *log_level_ = nullptr;
  std::vector<std::pair<CLI::Option*, std::string>> recipe_flags_;
};

const Verb& verb_named(const std::string& name) {
  std::vector<std::string> names;
  for (const Verb& verb : kVerbs) {
    if (name == verb.name) return verb;
    names.emplace_back(verb.name);
  }
  usage(fmt::format("unknown verb {}{}", name, did_you_mean(nearest_name(names, name))));
}

// RECIPE [KEY=VALUE...], values as TOML.
Invocation trial_process(const std::vector<std::string>& arguments) {
  if (arguments.empty()) usage(fmt::format("{} is for headrace tune, which starts it", kTrialVerb));
  Invocation invocation;
  invocation.verb = kTrialVerb;
  invocation.recipe = arguments.front();
  invocation.quiet = true;
  for (auto argument = arguments.begin() + 1; argument != arguments.end(); ++argument) {
    const std::size_t equals = argument->find('=');
    if (equals == std::string::npos) usage(fmt::format("{}: {} is no KEY=VALUE", kTrialVerb, *argument));
    invocation.settings.emplace_back(argument->substr(0, equals), argument->substr(equals + 1));
  }
  return invocation;
}

// `explain data.batch_size`: a key alone, where the recipe would stand.
void accept_key_alone(Invocation& invocation) {
  const std::string first = invocation.recipe.string();
  if (invocation.verb != "explain" || first.empty() || !invocation.key.empty()) return;
  Recipe known;
  const std::vector<Field> fields = fields_of(known);
  std::error_code ignored;  // A file that cannot be looked at is no recipe either.
  if (std::filesystem::exists(first, ignored) || first.find('/') != std::string::npos) return;
  const bool named = std::any_of(fields.begin(), fields.end(), [&](const Field& field) { return field.key == first; });
  if (!named && (invocation.recipe.extension() == ".toml" || nearest_key(fields, first).empty())) return;
  invocation.key = first;
  invocation.recipe.clear();
}

}  // namespace

std::variant<Invocation, Answer> parse_arguments(const std::vector<std::string>& arguments,
                                                 const std::string& torch_version) {
  if (arguments.size() < 2) return Answer{overview(), kExitUsage};
  std::string verb = arguments[1];
  std::vector<std::string> rest(arguments.begin() + 2, arguments.end());
  if (verb == "--version") return Answer{version_text(torch_version), kExitDone};
  if (verb == "help" && !rest.empty()) {
    verb = rest.front();
    rest = {"--help"};
  }
  if (verb == "--help" || verb == "-h" || verb == "help") return Answer{overview(), kExitDone};
  if (!verb.empty() && verb.front() == '-') usage(fmt::format("unknown flag {} where a verb was wanted", verb));

  auto parsed = verb == kTrialVerb ? trial_process(rest) : VerbLine(verb_named(verb)).parse(rest);
  if (auto* invocation = std::get_if<Invocation>(&parsed)) {
    invocation->argv = arguments;
    accept_key_alone(*invocation);
  }
  return parsed;
}

}  // namespace headrace
