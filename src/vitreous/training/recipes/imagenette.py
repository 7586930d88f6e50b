"""Imagenette (ten classes of ImageNet at 160 px) from scratch, and the checkpoint that comes with the package."""

from vitreous.training.config import TrainConfig


def imagenette() -> TrainConfig:
    """90.0% of the validation images (seed 0), in 139 s with another run on the same GPU, on one H200.

    `vitreous train imagenette --recipe imagenette`: Imagenette at 160 px, its 9,469 training images in train/, its
    3,925 validation images in test/.

    Measured on the 3,925 validation images of Imagenette; EMA weights of the last step, not selected.

    A patch size of 10, for 256 tokens per image; smaller images first, with 64 and then 144 tokens. There is no
    validation split, and the images of the result are not used for any choice.
    """
    return TrainConfig().with_(
        model="Ti/16",
        image_size=160,
        patch_size=10,
        width=256,
        depth=8,
        heads=4,
        mlp_dim=1024,
        pool="gap",
        position="sincos-2d",
        stochastic_depth=0.1,
        dropout=0.0,
        val_fraction=0.0,
        duration="130 epochs",
        progressive=("80@40%", "120@35%"),
        batch_size=512,
        optimiser="muon",
        lr=2e-3,
        muon_lr=0.01,
        weight_decay=0.05,
        warmup="5%",
        schedule="linear",
        ema=0.998,
        loss="softmax",
        label_smoothing=0.1,
        class_weights="none",
        crop=0.35,
        aspect=4 / 3,
        shift=0.0,
        flip=True,
        randaugment=2,
        magnitude=7.0,
        three_augment=False,
        jitter=0.0,
        erase=0.0,
        mixup=0.2,
        cutmix=1.0,
    )


def vitreous_mini() -> TrainConfig:
    """88.9% of 2,973 training images held out (seed 0), in 132 s with another run on the same GPU, on one H200.

    `vitreous train mini.npz --recipe vitreous_mini`: CIFAR-10's and Imagenette's training images as one set of 20
    classes, written by examples/mini_data.py.

    Measured on 2,973 held-out training images, which also selected the weights: the best of about 40 evaluations, so
    the number is slightly too high.

    The checkpoint of the package is the first 7 blocks of this model (examples/ship_mini.py). Training includes grey,
    blurred and solarised images, since the images of later tasks may be grey or drawings.
    """
    return imagenette().with_(
        model="vitreous-mini",
        image_size=96,
        patch_size=8,
        width=192,
        heads=3,
        mlp_dim=768,
        stochastic_depth=0.0,
        val_fraction=None,
        test_fraction=0.0,
        duration="40 epochs",
        progressive=("64@50%",),
        batch_size=1024,
        muon_lr=0.02,
        ema=0.995,
        three_augment=True,
        best_by="top1",
    )
