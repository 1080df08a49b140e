"""Fashion-MNIST as one tensor in memory; whole batches padded, cropped and flipped by indexing. One batch has its images
cropped each at its own place, as the loaders do."""

import torch

import protocol


def fashion(arguments):
    torch.set_num_threads(arguments.threads)
    images, labels = protocol.fashion(arguments.folder)
    side, pad, batch = protocol.FASHION_SIDE, protocol.FASHION_PAD, protocol.FASHION_BATCH
    padded = torch.nn.functional.pad(torch.from_numpy(images.copy()), (pad, pad, pad, pad))
    labels = torch.from_numpy(labels)
    steps = torch.arange(side)

    def one_pass():
        for chosen in torch.randperm(len(labels)).split(batch):
            if len(chosen) < batch:
                continue
            rows = torch.randint(2 * pad + 1, (batch, 1)) + steps
            columns = torch.randint(2 * pad + 1, (batch, 1)) + steps
            columns = torch.where(torch.rand(batch, 1) < 0.5, columns.flip(1), columns)
            cut = padded[chosen[:, None, None], rows[:, :, None], columns[:, None, :]]
            images = cut.unsqueeze(1).float().div_(255).sub_(protocol.FASHION_MEAN).div_(protocol.FASHION_DEVIATION)
            yield images, labels[chosen]

    return protocol.forever(one_pass)


if __name__ == "__main__":
    protocol.main(torch.__version__, {"fashion": fashion})
