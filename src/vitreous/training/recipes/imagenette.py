"""Ten classes of ImageNet at 160 px, from scratch, and the checkpoint that comes with the package."""

from vitreous.training.config import TrainConfig


def imagenette() -> TrainConfig:
    """90.0% of the validation images (seed 0), in 139 s beside another run, on one H200.

    `vitreous train imagenette --recipe imagenette`: Imagenette at 160 px, its 9,469 training images in train/, its
    3,925 validation images in test/.

    Measured on the 3,925 validation images of Imagenette; EMA weights of the last step, not selected.

    Patches of 10, so that small photographs become 256 tokens; smaller images first, 64 and then 144 of them. Nothing
    is held out, and nothing is chosen by the images that it is measured on.
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
    """88.9% of 2,973 training images held out (seed 0), in 132 s beside another run, on one H200.

    `vitreous train mini.npz --recipe vitreous_mini`: CIFAR-10's and Imagenette's training images as one set of 20
    classes, which examples/mini_data.py makes.

    Measured on 2,973 held-out training images, which also selected the weights: the best of some 40 evaluations, so the
    number is a little too high.

    What the checkpoint in the package is made of: its first 7 blocks, by examples/ship_mini.py. Grey, blurred and
    solarised images are among those that it learns from, since what it is good for afterwards may be drawn or grey.
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
