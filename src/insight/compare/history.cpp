#include "insight/compare/history.h"

#include <sqlite3.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "core/base/fail.h"

namespace headrace {
namespace {

constexpr int kApplication = 0x48524543;  // "HREC": a history of ours and nobody else's.
constexpr int kVersion = 1;
constexpr int kBusyMs = 5000;
constexpr double kDeviations95 = 1.96;  // Half of a 95 % interval.
constexpr double kDeviationMin = 1e-4;  // Of what is the same in every run, such as memory.

constexpr const char* kTables = R"(
CREATE TABLE comparison (
  id INTEGER PRIMARY KEY, config TEXT NOT NULL, machine TEXT NOT NULL, old_label TEXT NOT NULL, new_label TEXT NOT NULL,
  written TEXT NOT NULL, pairs INTEGER NOT NULL);
CREATE TABLE metric (
  comparison INTEGER NOT NULL REFERENCES comparison(id), name TEXT NOT NULL, old_value REAL NOT NULL, new_value REAL NOT NULL,
  effect REAL NOT NULL, low REAL NOT NULL, high REAL NOT NULL, change TEXT NOT NULL, PRIMARY KEY (comparison, name));
)";

struct Close {
  void operator()(sqlite3* database) const { sqlite3_close(database); }
};
struct Finalize {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};

// The open file.
struct Database {
  explicit Database(std::filesystem::path file) : path(std::move(file)) {
    sqlite3* opened = nullptr;
    // Absolute, as a name that begins with a colon is none of a file to SQLite.
    const int code = sqlite3_open_v2(std::filesystem::absolute(path).c_str(), &opened,
                                     SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
    handle.reset(opened);
    if (code != SQLITE_OK) refuse(code);
    sqlite3_busy_timeout(opened, kBusyMs);
    prepare_tables();
  }

  [[noreturn]] void refuse(int code) const {
    const int kind = code & 0xff;
    const bool is_foreign = kind == SQLITE_NOTADB || kind == SQLITE_CORRUPT;
    const char* words = handle ? sqlite3_errmsg(handle.get()) : sqlite3_errstr(code);
    fail(is_foreign ? ErrorCode::corrupt_data : ErrorCode::io, "compare: the history {}: {}", path.string(), words);
  }

  void run(const char* sql) const {
    const int code = sqlite3_exec(handle.get(), sql, nullptr, nullptr, nullptr);
    if (code != SQLITE_OK) refuse(code);
  }

  std::int64_t number(const char* sql) const;
  void prepare_tables() const;

  const std::filesystem::path path;
  std::unique_ptr<sqlite3, Close> handle;
};

// A prepared statement: bind() in order, then step() once a row.
class Statement {
 public:
  Statement(const Database& database, const char* sql) : database_(database) {
    sqlite3_stmt* prepared = nullptr;
    const int code = sqlite3_prepare_v2(database.handle.get(), sql, -1, &prepared, nullptr);
    statement_.reset(prepared);
    if (code != SQLITE_OK) database.refuse(code);
  }

  Statement& bind(const std::string& text) {
    return check(
        sqlite3_bind_text(statement_.get(), ++bound_, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT));
  }
  Statement& bind(double value) { return check(sqlite3_bind_double(statement_.get(), ++bound_, value)); }
  Statement& bind(std::int64_t value) { return check(sqlite3_bind_int64(statement_.get(), ++bound_, value)); }

  // Whether there is a row.
  bool step() {
    const int code = sqlite3_step(statement_.get());
    if (code != SQLITE_ROW && code != SQLITE_DONE) database_.refuse(code);
    return code == SQLITE_ROW;
  }

  std::string text(int column) {
    const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(statement_.get(), column));
    return bytes == nullptr ? std::string() : std::string(bytes, sqlite3_column_bytes(statement_.get(), column));
  }
  double real(int column) { return sqlite3_column_double(statement_.get(), column); }
  std::int64_t integer(int column) { return sqlite3_column_int64(statement_.get(), column); }

 private:
  Statement& check(int code) {
    if (code != SQLITE_OK) database_.refuse(code);
    return *this;
  }

  const Database& database_;
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  int bound_ = 0;
};

// Undoes what was not committed.
class Transaction {
 public:
  explicit Transaction(const Database& database) : database_(database) { database_.run("BEGIN IMMEDIATE"); }
  ~Transaction() {
    if (!committed_) sqlite3_exec(database_.handle.get(), "ROLLBACK", nullptr, nullptr, nullptr);
  }
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void commit() {
    database_.run("COMMIT");
    committed_ = true;
  }

 private:
  const Database& database_;
  bool committed_ = false;
};

// On the scale of effects, which change_of() has left.
Interval effects_of(const MetricVerdict& metric) {
  const auto effect = [&](double change) { return effect_of_change(metric.rule, change); };
  const double low = effect(metric.interval->low), high = effect(metric.interval->high);
  return {effect(metric.interval->median), std::min(low, high), std::max(low, high)};
}

std::int64_t Database::number(const char* sql) const {
  Statement statement(*this, sql);
  return statement.step() ? statement.integer(0) : 0;
}

void Database::prepare_tables() const {
  Transaction transaction(*this);
  const std::int64_t application = number("PRAGMA application_id"), version = number("PRAGMA user_version");
  if (application == 0 && number("SELECT count(*) FROM sqlite_master") == 0) {
    run(kTables);
    run(fmt::format("PRAGMA application_id = {}; PRAGMA user_version = {}", kApplication, kVersion).c_str());
    transaction.commit();
    return;
  }
  if (application != kApplication) {
    fail(ErrorCode::corrupt_data, "compare: {} is a database, but no history of headrace compare", path.string());
  }
  if (version != kVersion) {
    fail(ErrorCode::corrupt_data, "compare: the history {} has version {}, wanted {}", path.string(), version,
         kVersion);
  }
}

}  // namespace

struct History::Impl {
  explicit Impl(const std::filesystem::path& path) : database(path) {}
  Database database;
};

History::History(const std::filesystem::path& path) : impl_(std::make_unique<Impl>(path)) {}

History::~History() = default;

void History::add(const HistoryKey& key, const std::string& old_label, const std::string& new_label,
                  const std::string& written, const CompareVerdict& verdict) {
  Transaction transaction(impl_->database);
  Statement(impl_->database,
            "INSERT INTO comparison (config, machine, old_label, new_label, written, pairs) VALUES (?, ?, ?, ?, ?, ?)")
      .bind(key.config)
      .bind(key.machine)
      .bind(old_label)
      .bind(new_label)
      .bind(written)
      .bind(verdict.pairs)
      .step();
  const std::int64_t comparison = sqlite3_last_insert_rowid(impl_->database.handle.get());
  for (const MetricVerdict& metric : verdict.metrics) {
    if (!metric.interval) continue;
    const Interval effect = effects_of(metric);
    if (!std::isfinite(effect.low) || !std::isfinite(effect.high)) continue;
    Statement(impl_->database, "INSERT INTO metric VALUES (?, ?, ?, ?, ?, ?, ?, ?)")
        .bind(comparison)
        .bind(metric.rule.name)
        .bind(metric.old_value.value_or(0))
        .bind(metric.new_value.value_or(0))
        .bind(effect.median)
        .bind(effect.low)
        .bind(effect.high)
        .bind(std::string(to_string(metric.change)))
        .step();
  }
  transaction.commit();
}

std::vector<HistoryPoint> History::points(const HistoryKey& key, const std::string& metric) const {
  Statement rows(impl_->database,
                 "SELECT old_label, new_label, effect, low, high FROM comparison JOIN metric ON comparison = id WHERE "
                 "config = ? AND machine = ? AND name = ? ORDER BY id");
  rows.bind(key.config).bind(key.machine).bind(metric);
  std::vector<HistoryPoint> points;
  std::map<std::string, std::size_t> newest;  // The point of each label.
  while (rows.step()) {
    const std::string old_label = rows.text(0), new_label = rows.text(1);
    if (!newest.contains(old_label)) {
      newest[old_label] = points.size();
      points.push_back({.label = old_label});
    }
    const std::size_t parent = newest[old_label];
    newest[new_label] = points.size();
    points.push_back({.label = new_label,
                      .parent = parent,
                      .effect = rows.real(2),
                      .deviation = std::max(kDeviationMin, (rows.real(4) - rows.real(3)) / 2 / kDeviations95)});
  }
  return points;
}

std::int64_t History::comparisons() const {
  return impl_->database.number("SELECT count(*) FROM comparison");
}

}  // namespace headrace
