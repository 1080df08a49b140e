
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/option_tables.h>
#include <headrace/option_text.h>

#include <bit>
#include <clocale>
#include <cmath>
#include <locale>
#include <random>

#include <nlohmann/json.hpp>

namespace headrace {

enum class Shape { round, angular };
constexpr auto choices(Shape) {
  return std::array{Choice<Shape>{Shape::round, "round"}, Choice<Shape>{Shape::angular, "angular"}};
}

struct InnerOptions {
  double scale = 0.5;
  Shape shape = Shape::round;
};

struct ItemOptions {
  std::string name;
  double weight = 1.0;
  InnerOptions inner;
};

struct BoxOptions {
  static constexpr const char* kName = "Box";
  static constexpr const char* kSentence = "Has corners.";
  std::vector<std::int64_t> sides;
  double weight = 1.0;
};

struct BallOptions {
  static constexpr const char* kName = "Ball";
  static constexpr const char* kSentence = "Has none.";
  bool hollow = false;
};

struct ThingsOptions {
  std::vector<std::variant<std::monostate, BoxOptions, BallOptions>> things, others;
};

struct OuterOptions {
  std::int64_t seed = 1;
  InnerOptions inner;
  bool shuffle = true;
  double rate = 1e-3;
  std::string source;
  std::int64_t batch_size = 128;
  std::vector<double> mean{0.0};
  std::vector<std::string> only;
  std::vector<ItemOptions> items;
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, InnerOptions>
void describe(Visitor& visit, Options& o) {
  visit("scale", o.scale, Range<double>{0.0, 2.0}, "How large.");
  visit("shape", o.shape, "Which | form.");
}

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, ItemOptions>
void describe(Visitor& visit, Options& o) {
  visit("name", o.name, "Its name.");
  visit("weight", o.weight, "How heavy; any number.");
  visit("inner", o.inner, "");
}

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, BoxOptions>
void describe(Visitor& visit, Options& o) {
  visit("sides", o.sides, kRequired, Range<std::int64_t>{1, 99}, "How long.");
  visit("weight", o.weight, "How heavy.");
}

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, BallOptions>
void describe(Visitor& visit, Options& o) {
  visit("hollow", o.hollow, "Nothing in it.");
}

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, ThingsOptions>
void describe(Visitor& visit, Options& o) {
  visit("shop.things", o.things, "What there is.");
  visit("shop.others", o.others, "What else.");
}

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, OuterOptions>
void describe(Visitor& visit, Options& o) {
  visit("seed", o.seed, Range<std::int64_t>{0, 4294967295}, "Decides.");
  visit("data.inner", o.inner, "");
  visit("data.shuffle", o.shuffle, "New order.");
  visit("data.rate", o.rate, "Any number.");
  visit("data.source", o.source, "Where from.");
  visit("data.batch_size", o.batch_size, Range<std::int64_t>{1, 65536}, "Samples in a batch.");
  visit("data.mean", o.mean, Range<double>{-10.0, 10.0}, "Means.");
  visit("tune.only", o.only, "Names.");
  visit("tune.items", o.items, "Several.");
}

struct AutoOptions {
  std::int64_t num_workers = AUTOTUNE;
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, AutoOptions>
void describe(Visitor& visit, Options& o) {
  visit("num_workers", o.num_workers, Range<std::int64_t>{0, 256, kOrAuto}, "How many.");
}

namespace {

using testing::HasSubstr;

std::string refusal(const std::string& text) {
  OuterOptions options;
  try {
    read_toml(fields_of(options), text, "r.toml");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "accepted";
}

std::string flag_refusal(const std::string& key, const std::string& text) {
  OuterOptions options;
  const std::vector<Field> fields = fields_of(options);
  try {
    const Field& field = field_named(fields, key);
    field.set(parse_option(field, text));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "accepted";
}

TEST(ReadToml, SetsEveryKindAndReportsLinesInFileOrder) {
  OuterOptions options;
  const std::vector<KeyLine> lines = read_toml(fields_of(options), R"(seed = 7
[tune]
only = ["b", "a"]
[[tune.items]]
name = "first"
inner = {shape = "angular"}
[[tune.items]]
weight = -2
[data]
source = 'idx:/a b'   # literal
batch_size = 1_024
shuffle = false
rate = 3
mean = [0, 0.25]
[data.inner]
scale = 1e-8
shape = "angular"
)",
                                               "r.toml");
  EXPECT_EQ(options.seed, 7);
  EXPECT_EQ(options.only, (std::vector<std::string>{"b", "a"}));
  ASSERT_EQ(options.items.size(), 2U);
  EXPECT_EQ(options.items[0].name, "first");
  EXPECT_EQ(options.items[0].inner.shape, Shape::angular);
  EXPECT_EQ(options.items[1].weight, -2.0);
  EXPECT_EQ(options.source, "idx:/a b");
  EXPECT_EQ(options.batch_size, 1024);
  EXPECT_FALSE(options.shuffle);
  EXPECT_EQ(options.rate, 3.0);
  EXPECT_EQ(options.mean, (std::vector<double>{0.0, 0.25}));
  EXPECT_EQ(options.inner.scale, 1e-8);
  EXPECT_EQ(options.inner.shape, Shape::angular);

  std::vector<std::string> found;
  for (const KeyLine& line : lines) found.push_back(fmt::format("{}:{}", line.key, line.line));
  EXPECT_THAT(found, testing::ElementsAre("seed:1", "tune.only:3", "tune.items:4", "tune.items[0].name:5",
                                          "tune.items[0].inner.shape:6", "tune.items[1].weight:8", "data.source:10",
                                          "data.batch_size:11", "data.shuffle:12", "data.rate:13", "data.mean:14",
                                          "data.inner.scale:16", "data.inner.shape:17"));
}

TEST(ReadToml, AnEmptyDocumentChangesNothing) {
  OuterOptions options;
  options.items.resize(1);
  EXPECT_TRUE(read_toml(fields_of(options), "", "r.toml").empty());
  EXPECT_TRUE(read_toml(fields_of(options), "\xEF\xBB\xBF# only a comment after a byte order mark", "r.toml").empty());
  EXPECT_EQ(options.items.size(), 1U);
}

TEST(ReadToml, ReplacesTheTablesThatWereThere) {
  OuterOptions options;
  options.items.resize(3);
  options.items[0].weight = 9;
  read_toml(fields_of(options), "tune.items = [{name = 'x'}]", "r.toml");
  ASSERT_EQ(options.items.size(), 1U);
  EXPECT_EQ(options.items[0].weight, 1.0);
}

TEST(ReadToml, NamesTheNearestKeyWithFileAndLine) {
  EXPECT_EQ(refusal("seed = 1\n\n[data]\nbatchsize = 3\n"),
            "r.toml:4: unknown key data.batchsize, did you mean data.batch_size?");
  EXPECT_EQ(refusal("batch_size = 3"), "r.toml:1: unknown key batch_size, did you mean data.batch_size?");
  EXPECT_EQ(refusal("[tune]\nbatch_size = 3"), "r.toml:2: unknown key tune.batch_size, did you mean data.batch_size?");
  EXPECT_EQ(refusal("[dta]\nx = 1"), "r.toml:1: unknown table dta, did you mean data?");
  EXPECT_EQ(refusal("[data.iner]\nscale = 1"), "r.toml:1: unknown table data.iner, did you mean data.inner?");
  EXPECT_EQ(refusal("zzzzzz = 1"), "r.toml:1: unknown key zzzzzz; the keys are seed");
  EXPECT_EQ(refusal("[[tune.items]]\n[[tune.items]]\nwieght = 1"),
            "r.toml:3: unknown key tune.items[1].wieght, did you mean tune.items[1].weight?");
  EXPECT_EQ(refusal("\"data.batch_size\" = 3"),
            "r.toml:1: unknown key \"data.batch_size\", did you mean data.batch_size?");
}

TEST(ReadToml, ReportsTheFirstFaultOfTheFile) {
  EXPECT_EQ(refusal("seed = -1\n[data]\nbatch_size = 0"), "r.toml:1: seed must be 0 to 4294967295, found -1");
  EXPECT_EQ(refusal("[tune]\nzz = 1\n[data]\nbatch_size = 0").substr(0, 9), "r.toml:2:");
}

TEST(ReadToml, RefusesWrongTypes) {
  EXPECT_EQ(refusal("data.batch_size = '3'"), "r.toml:1: data.batch_size must be a whole number, found \"3\"");
  EXPECT_EQ(refusal("data.batch_size = 3.0"), "r.toml:1: data.batch_size must be a whole number, found 3.0");
  EXPECT_EQ(refusal("data.batch_size = [3]"), "r.toml:1: data.batch_size must be a whole number, found a list");
  EXPECT_EQ(refusal("data.batch_size = {a = 3}"), "r.toml:1: data.batch_size must be a whole number, found a table");
  EXPECT_EQ(refusal("data.shuffle = 1"), "r.toml:1: data.shuffle must be true or false, found 1");
  EXPECT_EQ(refusal("data.rate = true"), "r.toml:1: data.rate must be a number, found true");
  EXPECT_EQ(refusal("data.source = 1979-05-27"), "r.toml:1: data.source must be text, found 1979-05-27");
  EXPECT_EQ(refusal("data.mean = 0.5"), "r.toml:1: data.mean must be a list of numbers, found 0.5");
  EXPECT_EQ(refusal("data.mean = [0.5, 'x']"),
            "r.toml:1: data.mean must be a list of numbers, found something else in it");
  EXPECT_EQ(refusal("tune.only = 'x'"), "r.toml:1: tune.only must be a list of texts, found \"x\"");
  EXPECT_EQ(refusal("data = 3"), "r.toml:1: data must be a table, found 3");
  EXPECT_EQ(refusal("[tune.items]\nname = 'x'"),
            "r.toml:1: tune.items must be a list of tables ([[tune.items]]), found a table");
  EXPECT_EQ(refusal("tune.items = [3]"), "r.toml:1: tune.items[0] must be a table, found 3");
}

TEST(ReadToml, RefusesValuesOutOfRange) {
  EXPECT_EQ(refusal("data.batch_size = 65537"), "r.toml:1: data.batch_size must be 1 to 65536, found 65537");
  EXPECT_EQ(refusal("data.rate = nan"), "r.toml:1: data.rate must be a finite number, found nan");
  EXPECT_EQ(refusal("data.rate = -inf"), "r.toml:1: data.rate must be a finite number, found -inf");
  EXPECT_EQ(refusal("data.mean = [0, 11]"), "r.toml:1: data.mean must be -10 to 10, found 11.0");
  EXPECT_EQ(refusal("data.mean = [nan]"), "r.toml:1: data.mean must be -10 to 10, found nan");
  EXPECT_EQ(refusal("data.inner.shape = 'rond'"),
            "r.toml:1: data.inner.shape must be round | angular, found \"rond\", did you mean round?");
  EXPECT_EQ(refusal("data.inner.shape = 5"), "r.toml:1: data.inner.shape must be round | angular, found 5");
  EXPECT_EQ(refusal("\n[[tune.items]]\ninner.scale = 2.5"),
            "r.toml:3: tune.items[0].inner.scale must be 0 to 2, found 2.5");
  EXPECT_EQ(refusal("data.source = \"a\\u0000b\""),
            "r.toml:1: data.source must be UTF-8 text without NUL, found byte 0x00");
}

TEST(ReadToml, NamesTheLineOfASyntaxFault) {
  for (const char* text :
       {"seed = 1\n[data\n", "seed = 1\nrate = = 2\n", "seed = 1\nseed = 2\n", "seed = 1\n\xff = 2\n",
        "seed = 1\nx = \"\xc3\x28\"\n", "seed = 1\nx = \"open\n", "seed = 1\nx = 99999999999999999999\n",
        "seed = 1\n[data]\n[data]\n", "seed = 1\n[\n", "seed = 1\n[ \n", "seed = 1\n[[\ndata]]\n", "seed = 1\n[=]\n"}) {
    const std::string message = refusal(text);
    EXPECT_THAT(message, testing::AnyOf(testing::StartsWith("r.toml:2: "), testing::StartsWith("r.toml:3: "))) << text;
    EXPECT_THAT(message, testing::Not(HasSubstr("\n"))) << text;
  }
  EXPECT_EQ(refusal(std::string("seed = 1\nx = \"\0\"", 15)), "r.toml:2: byte 0x00 is not UTF-8 text");
  EXPECT_EQ(refusal("seed = 1\ngr\u00f6\u00dfe = 2\n"), "r.toml:2: '\u00f6' outside of quotes and comments");
  EXPECT_EQ(refusal("# \u00f6\n\u0349"), "r.toml:2: '\u0349' outside of quotes and comments");
  EXPECT_EQ(refusal("seed = \u2003 1"), "r.toml:1: '\u2003' outside of quotes and comments");
  EXPECT_EQ(refusal("x = \"\"\"a\\\u00f6\"\"\""), "r.toml:1: '\u00f6' outside of quotes and comments");
}

TEST(ReadToml, RefusesDocumentsThatWouldExhaustMemoryOrStack) {
  EXPECT_EQ(refusal("#" + std::string(1 << 20, 'x')), "r.toml:1: 1048577 bytes, a recipe may have 1048576");
  EXPECT_EQ(refusal("#" + std::string((1 << 20) - 1, 'x')), "accepted");
  std::string deep = "a";
  for (int i = 0; i < 100000; ++i) deep += ".a";
  EXPECT_THAT(refusal(deep + " = 1"), HasSubstr("more than 2048 dots"));
  EXPECT_THAT(refusal("a" + deep.substr(1, 4096) + " = 1"), HasSubstr("unknown table a"));
  EXPECT_THAT(refusal("x = " + std::string(100000, '[')), testing::StartsWith("r.toml:1: "));
}

TEST(WriteToml, ReadsBackEqual) {
  OuterOptions options;
  options.seed = 4294967295;
  options.inner = {1.0 / 3, Shape::angular};
  options.shuffle = false;
  options.rate = 5e-324;
  options.source = "idx:\"quoted\" \\ \t\r\n\x01\x7f ünï";
  options.mean = {};
  options.only = {"", "a,b"};
  options.items.resize(2);
  options.items[0].name = "one";
  options.items[1].weight = -0.0;
  options.items[1].inner.shape = Shape::angular;
  const std::string text = write_toml(fields_of(options));

  OuterOptions read;
  read.items.resize(5);
  read_toml(fields_of(read), text, "written");
  EXPECT_EQ(write_toml(fields_of(read)), text);
  EXPECT_EQ(read.source, options.source);
  EXPECT_EQ(read.mean, options.mean);
  EXPECT_EQ(read.only, options.only);
  ASSERT_EQ(read.items.size(), 2U);
  EXPECT_TRUE(std::signbit(read.items[1].weight));
}

TEST(WriteToml, PutsEveryFieldUnderItsTableOnce) {
  OuterOptions options;
  EXPECT_EQ(write_toml(fields_of(options), [](const std::string& key) { return key == "seed" ? "a\nb" : ""; }),
            R"(seed = 1  # a b

[data.inner]
scale = 0.5
shape = "round"

[data]
shuffle = true
rate = 0.001
source = ""
batch_size = 128
mean = [0.0]

[tune]
only = []
items = []
)");
}

TEST(WriteToml, KeepsEveryBitOfRealNumbers) {
  std::mt19937_64 random{7};
  OuterOptions options, read;
  for (int i = 0; i < 20000; ++i) {
    options.rate = std::bit_cast<double>(random());
    if (!std::isfinite(options.rate)) continue;
    read_toml(fields_of(read), "data.rate = " + to_toml(options.rate), "r.toml");
    ASSERT_EQ(std::bit_cast<std::uint64_t>(read.rate), std::bit_cast<std::uint64_t>(options.rate)) << options.rate;
    const std::vector<Field> fields = fields_of(read);
    const Field& field = field_named(fields, "data.rate");
    ASSERT_EQ(parse_option(field, to_toml(options.rate)), OptionValue{options.rate});
  }
}

// As std::locale::global and setlocale would leave it where a comma divides; made here, since no such locale need be
// installed.
struct CommaNumbers : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(Toml, NumbersDoNotDependOnTheLocale) {
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new CommaNumbers));
  OuterOptions options;
  read_toml(fields_of(options), "seed = 12345\ndata.rate = 1234.5", "r.toml");
  const std::string written = write_toml(fields_of(options));
  const std::string message = refusal("\ndata.batch_size = 70000.5");
  std::locale::global(before);
  EXPECT_EQ(options.rate, 1234.5);
  EXPECT_THAT(written, HasSubstr("rate = 1234.5\n"));
  EXPECT_THAT(written, HasSubstr("seed = 12345\n"));
  EXPECT_EQ(message, "r.toml:2: data.batch_size must be a whole number, found 70000.5");
}

TEST(ParseOption, ReadsEachKind) {
  OuterOptions options;
  const std::vector<Field> fields = fields_of(options);
  const auto set = [&](const std::string& key, const std::string& text) {
    const Field& field = field_named(fields, key);
    field.set(parse_option(field, text));
  };
  set("seed", "+9");
  set("data.shuffle", "false");
  set("data.rate", "2");
  set("data.source", "idx:/x,y");
  set("data.mean", "0.1,-2");
  set("tune.only", "a,b c");
  set("data.inner.shape", "angular");
  EXPECT_EQ(options.seed, 9);
  EXPECT_FALSE(options.shuffle);
  EXPECT_EQ(options.rate, 2.0);
  EXPECT_EQ(options.source, "idx:/x,y");
  EXPECT_EQ(options.mean, (std::vector<double>{0.1, -2.0}));
  EXPECT_EQ(options.only, (std::vector<std::string>{"a", "b c"}));
  EXPECT_EQ(options.inner.shape, Shape::angular);
  set("tune.only", "");
  EXPECT_TRUE(options.only.empty());
}

TEST(ParseOption, RefusesWhatIsNotOfItsKind) {
  EXPECT_EQ(flag_refusal("seed", "12x"), "seed must be a whole number, found \"12x\"");
  EXPECT_EQ(flag_refusal("seed", ""), "seed must be a whole number, found \"\"");
  EXPECT_EQ(flag_refusal("seed", "1e3"), "seed must be a whole number, found \"1e3\"");
  EXPECT_EQ(flag_refusal("seed", "99999999999999999999"), "seed: 99999999999999999999 does not fit in 64 bits");
  EXPECT_EQ(flag_refusal("data.rate", "1,5"), "data.rate must be a number, found \"1,5\"");
  EXPECT_EQ(flag_refusal("data.rate", "inf"), "data.rate must be a finite number, found inf");
  EXPECT_EQ(flag_refusal("data.mean", "1,,2"), "data.mean must be a list of numbers, found \"\"");
  EXPECT_EQ(flag_refusal("data.shuffle", "yes"), "data.shuffle must be true or false, found \"yes\"");
  EXPECT_EQ(flag_refusal("data.source", "\xff"), "data.source must be UTF-8 text without NUL, found byte 0xff");
  EXPECT_EQ(flag_refusal("data.source", "\xed\xa0\x80"), "data.source must be UTF-8 text without NUL, found byte 0xed");
  EXPECT_EQ(flag_refusal("tune.items", "x"), "tune.items must be a list of tables, found \"x\"");
  EXPECT_EQ(flag_refusal("data.btach_size", "1"), "unknown key data.btach_size, did you mean data.batch_size?");
}

TEST(ChoiceName, IsTheNameThatChoicesGivesAValue) {
  static_assert(choice_name(Shape::round) == "round");
  EXPECT_EQ(choice_name(Shape::angular), "angular");
  EXPECT_DEATH(choice_name(static_cast<Shape>(2)), "a value without a name");
}

TEST(Fields, NamesElementsByTheirIndex) {
  OuterOptions options;
  const std::vector<Field> fields = fields_of(options);
  const Field& items = field_named(fields, "tune.items");
  EXPECT_EQ(items.element(1).front().key, "tune.items[1].name");
  EXPECT_EQ(items.element_count(), 2U);
  const std::vector<Field> defaults = items.element_defaults();
  EXPECT_EQ(defaults.front().key, "tune.items[].name");
  EXPECT_EQ(items.element_count(), 2U);
}

std::string things_refusal(const std::string& text) {
  ThingsOptions options;
  try {
    read_toml(fields_of(options), text, "r.toml");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "accepted";
}

TEST(NamedTables, AreReadByTheirNameWhereverItStandsAndWrittenNameFirst) {
  ThingsOptions options;
  const std::vector<KeyLine> lines = read_toml(fields_of(options), R"([[shop.things]]
sides = [3, 4]
name = "Box"
[[shop.things]]
name = "Ball"
[shop]
others = [{name = "Box", sides = 7, weight = 2}]
)",
                                               "r.toml");
  ASSERT_EQ(options.things.size(), 2U);
  EXPECT_EQ(std::get<BoxOptions>(options.things[0]).sides, (std::vector<std::int64_t>{3, 4}));
  EXPECT_FALSE(std::get<BallOptions>(options.things[1]).hollow);
  EXPECT_EQ(std::get<BoxOptions>(options.others[0]).sides, std::vector<std::int64_t>{7});
  EXPECT_EQ(lines[1].key, "shop.things[0].sides");
  EXPECT_EQ(lines[2].key, "shop.things[0].name");
  const std::string text = write_toml(fields_of(options));
  EXPECT_EQ(text, R"([[shop.things]]
name = "Box"
sides = [3, 4]
weight = 1.0

[[shop.things]]
name = "Ball"
hollow = false

[[shop.others]]
name = "Box"
sides = [7]
weight = 2.0
)");
  ThingsOptions again;
  read_toml(fields_of(again), text, "written");
  EXPECT_EQ(write_toml(fields_of(again)), text);
  const std::vector<Field> fields = fields_of(options);
  EXPECT_EQ(tables_toml(fields[0]), R"([{name = "Box", sides = [3, 4]}, {name = "Ball"}])");
  EXPECT_EQ(tables_toml(fields[1]), R"([{name = "Box", sides = [7], weight = 2.0}])");
}

TEST(NamedTables, RefusalsNameTheTableAndTheNearestName) {
  EXPECT_EQ(things_refusal("[[shop.things]]\nname = 'Ball'\n[[shop.things]]\nname = 'Bxo'"),
            "r.toml:4: shop.things[1].name must be Box | Ball, found \"Bxo\", did you mean Box?");
  EXPECT_EQ(things_refusal("[[shop.things]]\nname = 5"), "r.toml:2: shop.things[0].name must be Box | Ball, found 5");
  EXPECT_EQ(things_refusal("[[shop.things]]\nname = {a = 1}"),
            "r.toml:2: shop.things[0].name must be Box | Ball, found a table");
  EXPECT_EQ(things_refusal("\n[[shop.things]]\nsides = 1"),
            "r.toml:2: shop.things[0].name is missing; wanted Box | Ball");
  EXPECT_EQ(things_refusal("[[shop.things]]\nname = 'Box'\nsids = 1"),
            "r.toml:3: unknown key shop.things[0].sids, did you mean shop.things[0].sides?");
  EXPECT_EQ(things_refusal("[[shop.things]]\nname = 'Ball'\nsides = 1"),
            "r.toml:3: unknown key shop.things[0].sides; the keys of shop.things[0] are name, hollow");
  EXPECT_EQ(things_refusal("[shop.things]\nname = 'Ball'"),
            "r.toml:1: shop.things must be a list of tables ([[shop.things]]), found a table");
}

TEST(NamedTables, KeepWhatTheyAreWhenTheirNameIsSetAgain) {
  ThingsOptions options;
  const std::vector<Field> fields = fields_of(options);
  for (const Field& field : named_element(fields[0], 0, OptionValue{std::string("Box")})) {
    if (field.key.ends_with("weight")) field.set(OptionValue{3.0});
  }
  for (const Field& field : with_elements(fields)) {
    if (field.set) field.set(field.get());
  }
  EXPECT_EQ(std::get<BoxOptions>(options.things.at(0)).weight, 3.0);
  named_element(fields[0], 0, OptionValue{std::string("Ball")});
  EXPECT_TRUE(std::holds_alternative<BallOptions>(options.things[0]));
}

TEST(NamedTables, AreToldOnceInTheReferenceEachByItsName) {
  ThingsOptions options;
  const std::string text = options_markdown(fields_of(options), "Options");
  EXPECT_THAT(text, HasSubstr("## [[shop.things]]\n\nWhat there is.\n\n### name = \"Box\"\n\nHas corners.\n\n| key |"));
  EXPECT_THAT(text,
              HasSubstr("| `shop.things[].sides` | a whole number or a list of them | none | 1 to 99 | How long. |"));
  EXPECT_THAT(text, HasSubstr("### name = \"Ball\"\n\nHas none.\n"));
  EXPECT_THAT(text, HasSubstr("What else.\n\nIts tables are those of [[shop.things]].\n"));
  EXPECT_THAT(text, testing::Not(HasSubstr("shop.others[]")));

  const auto schema = nlohmann::ordered_json::parse(options_schema(fields_of(options), "t"));
  const auto& shop = schema["properties"]["shop"]["properties"];
  const auto& box = shop["things"]["items"]["oneOf"][0];
  EXPECT_EQ(box["properties"]["name"]["const"], "Box");
  EXPECT_EQ(box["required"], (std::vector<std::string>{"name", "sides"}));
  EXPECT_EQ(box["additionalProperties"], false);
  EXPECT_EQ(box["properties"]["sides"]["type"], (nlohmann::ordered_json{"integer", "array"}));
  EXPECT_EQ(box["properties"]["sides"]["items"]["maximum"], 99);
  EXPECT_FALSE(box["properties"]["sides"].contains("default"));
  EXPECT_EQ(box["properties"]["weight"]["default"], 1.0);
  EXPECT_EQ(shop["things"]["items"]["oneOf"].size(), 2U);
  EXPECT_EQ(shop["others"]["items"], (nlohmann::ordered_json{{"$ref", "#/properties/shop/properties/things/items"}}));
}

TEST(Integers, AreOneNumberOrAList) {
  BoxOptions options;
  const std::vector<Field> fields = fields_of(options, "box.");
  const auto refused = [&](const std::string& text) {
    try {
      read_toml(fields, text, "r.toml");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused("box.sides = 5"), "accepted");
  EXPECT_EQ(options.sides, std::vector<std::int64_t>{5});
  fields[0].set(parse_option(fields[0], "7,8"));
  EXPECT_EQ(options.sides, (std::vector<std::int64_t>{7, 8}));
  EXPECT_EQ(to_toml(fields[0].get()), "[7, 8]");
  EXPECT_EQ(refused("box.sides = [5, 100]"), "r.toml:1: box.sides must be 1 to 99, found 100");
  EXPECT_EQ(refused("box.sides = 0"), "r.toml:1: box.sides must be 1 to 99, found 0");
  EXPECT_EQ(refused("box.sides = 5.0"), "r.toml:1: box.sides must be a whole number or a list of them, found 5.0");
  EXPECT_EQ(refused("box.sides = [5.0]"),
            "r.toml:1: box.sides must be a whole number or a list of them, found something else in it");
  EXPECT_EQ(options.sides, (std::vector<std::int64_t>{7, 8}));
}

TEST(Reference, MarkdownNamesEveryKeyOnce) {
  OuterOptions options;
  const std::string text = options_markdown(fields_of(options), "Options");
  EXPECT_THAT(text, HasSubstr("# Options\n\n| key |"));
  EXPECT_THAT(text, HasSubstr("\n## [data.inner]\n"));
  EXPECT_THAT(text, HasSubstr("\n## [[tune.items]]\n"));
  EXPECT_THAT(text, HasSubstr("| `data.batch_size` | a whole number | `128` | 1 to 65536 | Samples in a batch. |\n"));
  EXPECT_THAT(text, HasSubstr("round \\| angular | Which \\| form. |\n"));
  for (const Field& field : fields_of(options)) {
    const std::string row = "| `" + field.key + "` |";
    const std::size_t first = text.find(row);
    ASSERT_NE(first, std::string::npos) << field.key;
    EXPECT_EQ(text.find(row, first + 1), std::string::npos) << field.key;
  }
}

TEST(Reference, SchemaRefusesUnknownKeysAtEveryLevel) {
  OuterOptions options;
  const auto schema = nlohmann::ordered_json::parse(options_schema(fields_of(options), "Outer"));
  EXPECT_EQ(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
  EXPECT_EQ(schema["additionalProperties"], false);
  const auto& data = schema["properties"]["data"];
  EXPECT_EQ(data["additionalProperties"], false);
  EXPECT_EQ(data["properties"]["inner"]["additionalProperties"], false);
  EXPECT_EQ(data["properties"]["batch_size"]["maximum"], 65536);
  EXPECT_EQ(data["properties"]["batch_size"]["default"], 128);
  EXPECT_EQ(data["properties"]["mean"]["items"]["minimum"], -10.0);
  EXPECT_EQ(data["properties"]["inner"]["properties"]["shape"]["enum"], (std::vector<std::string>{"round", "angular"}));
  const auto& item = schema["properties"]["tune"]["properties"]["items"]["items"];
  EXPECT_EQ(item["additionalProperties"], false);
  EXPECT_FALSE(item["properties"]["weight"].contains("minimum"));
}

TEST(AutoNumber, IsWrittenAsAWordAndReadFromThatOrItsNumber) {
  AutoOptions options;
  const std::vector<Field> fields = fields_of(options, "data.");
  EXPECT_EQ(write_toml(fields), "[data]\nnum_workers = \"auto\"\n");
  read_toml(fields, "data.num_workers = 3", "r.toml");
  EXPECT_EQ(options.num_workers, 3);
  EXPECT_EQ(to_toml(fields[0].get()), "3");
  for (const char* text : {"data.num_workers = 'auto'", "data.num_workers = -1"}) {
    options.num_workers = 5;
    read_toml(fields, text, "r.toml");
    EXPECT_EQ(options.num_workers, AUTOTUNE) << text;
  }
  for (const char* text : {"auto", "-1", "7"}) fields[0].set(parse_option(fields[0], text));
  EXPECT_EQ(options.num_workers, 7);
}

TEST(AutoNumber, RefusalsSayBothFormsAndNumbersWithoutItRefuseIt) {
  AutoOptions options;
  const std::vector<Field> fields = fields_of(options, "data.");
  const auto refused = [&](const std::string& text) {
    try {
      fields[0].set(parse_option(fields[0], text));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused("257"), "data.num_workers must be 0 to 256, or \"auto\", found 257");
  EXPECT_EQ(refused("-2"), "data.num_workers must be 0 to 256, or \"auto\", found -2");
  EXPECT_EQ(refused("atuo"), "data.num_workers must be 0 to 256, or \"auto\", found \"atuo\"");
  EXPECT_EQ(refusal("data.batch_size = 'auto'"), "r.toml:1: data.batch_size must be a whole number, found \"auto\"");
  EXPECT_EQ(refusal("data.batch_size = -1"), "r.toml:1: data.batch_size must be 1 to 65536, found -1");
}

TEST(AutoNumber, TheSchemaTakesANumberInRangeOrTheWord) {
  AutoOptions options;
  const auto whole = nlohmann::ordered_json::parse(options_schema(fields_of(options), "t"));
  const auto& schema = whole["properties"]["num_workers"];
  EXPECT_EQ(schema["type"], (nlohmann::ordered_json{"integer", "string"}));
  EXPECT_EQ(schema["minimum"], 0);
  EXPECT_EQ(schema["maximum"], 256);
  EXPECT_EQ(schema["pattern"], "^auto$");
  EXPECT_EQ(schema["default"], "auto");
}

}  // namespace
}  // namespace headrace
