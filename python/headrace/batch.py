"""What a headrace.Loader yields."""


class Batch(tuple):
    """(images, labels) of one batch, and every field by its name: batch["image"], batch["labels"], and batch["valid"],
    which is 1 where a sample counts. The tensors lie in the loader's memory, which stays as it is as long as one of them
    lives. epoch and index say where in the run the batch stands, both from 0."""

    def __new__(cls, fields, epoch, index):
        self = super().__new__(cls, (fields["image"], fields["labels"]))
        self.fields = fields
        self.epoch = epoch
        self.index = index
        return self

    def __getitem__(self, key):
        return self.fields[key] if isinstance(key, str) else super().__getitem__(key)

    def __reduce__(self):
        return Batch, (self.fields, self.epoch, self.index)
