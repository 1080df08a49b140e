// The keys of [train] and [lr_scheduler] that mean something in Python, as keywords of a Trainer and of its fit().
#pragma once

#include <headrace/option_fields.h>
#include <headrace/options/lr_scheduler.h>
#include <headrace/options/train.h>

#include <vector>

namespace headrace::python {

// What a Trainer is made with: every key that fit() does not take, but plan_batch_size, which is a recipe's.
std::vector<Field> trainer_fields(TrainOptions& options, LrSchedulerOptions& schedule);
// checkpoint_every_s, keep_checkpoints, async_checkpoints, early_stopping_patience, and of SWA what follows swa_start.
std::vector<Field> fit_fields(TrainOptions& options);

}  // namespace headrace::python
