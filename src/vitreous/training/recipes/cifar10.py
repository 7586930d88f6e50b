"""CIFAR-10 from scratch on one GPU: the best accuracy in a few minutes, and a run of less than a minute."""

from vitreous.training.config import TrainConfig


def cifar10() -> TrainConfig:
    """95.8% of the test images (96.0, 95.5, 95.8 with seeds 0, 1, 2), in 2.0 to 2.6 minutes each, on one H200.

    `vitreous train cifar10 --recipe cifar10 --data-dir FOLDER`: CIFAR-10, all 50,000 training images; FOLDER
    contains its files.

    Measured on the 10,000 test images; EMA weights of the last step, not selected.

    There is no validation split, and the test images are not used for any choice. No augmentation at test time. Trains
    on smaller images first: 36 tokens for 60% of the epochs, then 64.
    """
    return TrainConfig().with_(
        model="Ti/16",
        image_size=32,
        patch_size=4,
        width=256,
        depth=8,
        heads=4,
        mlp_dim=1024,
        pool="gap",
        position="sincos-2d",
        stochastic_depth=0.1,
        dropout=0.0,
        val_fraction=0.0,
        duration="200 epochs",
        progressive=("24@60%",),
        batch_size=1024,
        optimiser="muon",
        lr=2e-3,
        muon_lr=0.02,
        weight_decay=0.05,
        warmup="5%",
        schedule="linear",
        ema=0.999,
        loss="softmax",
        label_smoothing=0.1,
        class_weights="none",
        crop=1.0,
        aspect=1.0,
        shift=0.125,
        flip=True,
        randaugment=2,
        magnitude=7.0,
        three_augment=False,
        jitter=0.0,
        erase=0.0,
        mixup=0.2,
        cutmix=1.0,
    )


def cifar10_fast() -> TrainConfig:
    """91.1% of the test images (90.6 to 91.5 with seeds 0 to 4), in 34 s each, 47 s when compiling, on one H200.

    `vitreous train cifar10 --recipe cifar10_fast --data-dir FOLDER`: CIFAR-10, all 50,000 training images; FOLDER
    contains its files.

    Measured on the 10,000 test images; EMA weights of the last step, not selected.

    The recipe cifar10 for a fifth of its epochs, with weaker augmentation: with this mixup, half of the images are
    nearly unmixed. Smaller images first would save time in each step, but each image size has to be compiled.
    """
    return cifar10().with_(
        stochastic_depth=0.05,
        duration="42 epochs",
        progressive=(),
        ema=0.99,
        randaugment=1,
        magnitude=6.0,
        mixup=0.05,
    )
