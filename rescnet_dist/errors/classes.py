"""The exceptions: each message names the value, the limit and the remedy."""

from __future__ import annotations

from rescnet_dist.errors.messages import mask_secrets


class RescnetError(ValueError):
    """Base class of all errors of this package.

    Raised itself for input that has no class of its own, such as an unknown command argument. The
    message says what was found, what was expected and what to do. Secrets of URLs are masked.

    Parameters
    ----------
    message : str, default ""
        What went wrong and what to do.
    missing_path : bool, default False
        Whether the cause is a path of this machine where nothing is.
    """

    def __init__(self, message: str = "", *, missing_path: bool = False) -> None:
        super().__init__(mask_secrets(message))
        self.missing_path = missing_path


class SpecError(RescnetError):
    """An option is unknown, out of range, or does not fit the others or the images.

    Raised when a spec is created, and before a run starts. Change the option that the message
    names.
    """


class BackendError(RescnetError):
    """A library or a device of the array backend is missing.

    Raised for `array_backend="cupy"` on a machine or worker without CuPy or a GPU. Install the
    library that the message names, or use `array_backend="numpy"`.
    """


class DataError(RescnetError):
    """Images or labels cannot be used for training or prediction.

    Raised for arrays of a wrong shape or type, values that are not finite, and files that cannot be
    decoded. Change the data as the message says.
    """


class StoreError(RescnetError):
    """A run store or a stored network cannot be used.

    Raised if the URL is already taken, if the store cannot be written, and as one of the classes
    below if it cannot be read. Check the URL, or choose another.
    """


class ClaimLostError(StoreError):
    """Another driver has taken over the run.

    Raised in the driver that lost it, which stops without writing more. Let the other driver
    finish, or resume the run once it has stopped.
    """


class StoreReadError(StoreError):
    """A store answers, but what was asked for cannot be read.

    Raised if there is nothing at the URL, if it is damaged, or of another format or version. Trying
    again gives the same result. Check the URL.
    """


class CorruptDataError(StoreReadError):
    """A stored array or record is incomplete, altered or stale.

    Raised if stored data do not match their checksum or their commit record. List all damaged
    chunks with `rescnet check`.
    """


class StoreUnreachableError(StoreError):
    """A store does not answer, in most operations after two minutes of retries.

    The cause may be temporary. Resume the run once the store can be reached.
    """


class StoreFullError(StoreError):
    """There is too little space to write a store.

    Raised before a run starts if its first layers do not fit, and once a disk is full. Free some
    space, then run again or resume the run.
    """


class StorePermissionError(StoreReadError):
    """A store may not be read, because of missing credentials or permissions.

    Check the credentials and the permissions of the store.
    """


class ClusterError(RescnetError):
    """The Dask cluster cannot be used.

    Raised if no scheduler or no worker answers, if versions differ, or if workers are too small for
    the run, in part as one of the classes below. Fix the cluster as the message says, then run
    again.
    """


class ClusterUnreachableError(ClusterError):
    """No Dask scheduler listens at the address, or no worker joins the cluster.

    Start them, or wait longer for them (`--wait`), then run again.
    """


class ClusterLostError(ClusterError):
    """The connection to the Dask cluster was lost during a run.

    Finished layers are kept. Resume the run on a running cluster.
    """


class WorkersTooSmallError(ClusterError):
    """No plan of the run fits the memory of the workers or of their GPUs.

    Larger workers may join later. Start them, or change the option that the message names, then run
    again.
    """


class PassError(RescnetError):
    """A pass over the data failed repeatedly without finishing a chunk.

    The message has the cause of the last failure. Fix that, then resume the run.
    """
