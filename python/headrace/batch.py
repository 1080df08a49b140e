"""What a headrace.Loader yields."""

from collections.abc import Mapping


class Batch(tuple):
    """The fields of one batch: as a tuple in their order, so that images, labels = batch where these two are all, and by name:
    batch["boxes"], batch.boxes, dict(batch). A field is a tensor with the batch's samples first, a RaggedTensor where they differ
    in shape, or a list of str. batch["valid"], which is not of the tuple, is 1 where a sample counts; present(name) tells which
    samples have a field that some lack. The tensors lie in the loader's memory, which stays as it is as long as one of them
    lives. epoch and index say where in the run the batch stands, both from 0. Where torch is not installed NumPy's arrays stand
    in the place of tensors."""

    def __new__(cls, fields, epoch=0, index=0, present=None):
        if isinstance(fields, Batch):
            fields = dict(fields.fields)
        if not isinstance(fields, (dict, Mapping)):  # Who makes a tuple of the same class of other items, as frameworks do, gets a tuple.
            return tuple(fields)
        self = super().__new__(cls, (field for name, field in fields.items() if name != "valid"))
        self.fields = fields
        self.epoch = epoch
        self.index = index
        self._present = present or {}
        return self

    def __getitem__(self, key):
        if not isinstance(key, str):
            return super().__getitem__(key)
        try:
            return self.fields[key]
        except KeyError:
            raise KeyError(f"a batch has no field {key!r}; it has {', '.join(self.fields)}") from None

    def __getattr__(self, name):  # Of what is not found otherwise.
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(f"a batch has no field or attribute {name!r}; its fields are {', '.join(fields)}")

    def keys(self):
        return self.fields.keys()

    def values(self):
        return self.fields.values()

    def items(self):
        return self.fields.items()

    def present(self, name):
        """A tensor, 1 where the sample has this field; None where all have it."""
        self[name]
        return self._present.get(name)

    def with_fields(self, fields):
        """The same batch of other fields."""
        return Batch(fields, self.epoch, self.index, self._present)

    def to(self, device, non_blocking=False):
        """The same batch with its tensors on this device; texts stay."""
        def moved(field):
            return field.to(device, non_blocking=non_blocking) if hasattr(field, "to") else field

        return Batch({name: moved(field) for name, field in self.fields.items()}, self.epoch, self.index,
                     {name: moved(there) for name, there in self._present.items()})

    def part(self, begin, end):
        """Samples begin to end, as a batch over the same memory."""
        def cut(field):
            return field.part(begin, end) if isinstance(field, RaggedTensor) else field[begin:end]

        return Batch({name: cut(field) for name, field in self.fields.items()}, self.epoch, self.index,
                     {name: there[begin:end] for name, there in self._present.items()})

    def __repr__(self):
        fields = ", ".join(f"{name} {_form_of(field)}" for name, field in self.fields.items())
        return f"<headrace.Batch {self.index} of epoch {self.epoch}: {fields}>"

    def __reduce__(self):
        return Batch, (self.fields, self.epoch, self.index, self._present)


def _form_of(field):
    """As "float32 (64, 3, 224, 224)"; of what has no shape its class."""
    if not hasattr(field, "dtype"):
        return repr(field) if isinstance(field, RaggedTensor) else type(field).__name__
    return f"{str(field.dtype).removeprefix('torch.')} {tuple(field.shape)}"


class RaggedTensor:
    """A field of which each sample has a shape of its own: values holds them one behind the other along its first axis, sample i
    from offsets[i] to offsets[i + 1]. Where other axes differ, too, values has one axis and shapes the shape of each sample.
    ragged[i] is a view of sample i, and unbind() a list of all. len() is the number of samples."""

    def __init__(self, values, offsets, shapes=None):
        self.values = values
        self.offsets = offsets
        self.shapes = shapes

    def __len__(self):
        return len(self.offsets) - 1

    def __getitem__(self, sample):
        count = len(self)
        if not -count <= sample < count:
            raise IndexError(f"sample {sample} of {count}")
        sample %= count
        part = self.values[int(self.offsets[sample]):int(self.offsets[sample + 1])]
        return part if self.shapes is None else part.reshape(self.shapes[sample].tolist())

    def __iter__(self):
        return iter(self.unbind())

    def unbind(self):
        ends = self.offsets.tolist()
        parts = [self.values[begin:end] for begin, end in zip(ends, ends[1:])]
        return parts if self.shapes is None else [part.reshape(shapes) for part, shapes in zip(parts, self.shapes.tolist())]

    def nested(self):
        """A torch.nested tensor, jagged along the first axis, over the same values."""
        import torch

        if self.shapes is not None:
            raise ValueError("samples that differ in more than their first axis are no jagged tensor; use unbind()")
        return torch.nested.nested_tensor_from_jagged(self.values, self.offsets.to(self.values.device))

    def part(self, begin, end):
        """Samples begin to end, over the same values."""
        first, last = int(self.offsets[begin]), int(self.offsets[end])
        shapes = None if self.shapes is None else self.shapes[begin:end]
        return RaggedTensor(self.values[first:last], self.offsets[begin:end + 1] - first, shapes)

    def tensors(self):
        """Those it is made of."""
        return [tensor for tensor in (self.values, self.offsets, self.shapes) if tensor is not None]

    def to(self, device, non_blocking=False):
        """The same samples with their values, offsets and shapes on this device."""
        return RaggedTensor(*(None if tensor is None else tensor.to(device, non_blocking=non_blocking)
                              for tensor in (self.values, self.offsets, self.shapes)))

    def map(self, change):
        """The same samples with `change` of their values."""
        return RaggedTensor(change(self.values), self.offsets, self.shapes)

    def __repr__(self):
        return f"RaggedTensor({len(self)} samples of {self.values.dtype}, {tuple(self.values.shape)} in all)"

    def __reduce__(self):
        return RaggedTensor, (self.values, self.offsets, self.shapes)
