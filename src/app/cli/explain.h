// The verb explain: what each key of a recipe is, and why.
#pragma once

#include "app/cli/console.h"
#include "app/cli/invocation.h"

namespace headrace {

// Shows the recipe's keys (or those of invocation.key: a key, or a table such as "data"), or prints what
// docs/options.md or docs/recipe.schema.json hold. With --out, the tuner's findings of that run stand beside the keys
// they touched.
int run_explain(const Invocation& invocation, Console& console);

// The content of docs/options.md and docs/recipe.schema.json.
std::string options_document();
std::string schema_document();

}  // namespace headrace
