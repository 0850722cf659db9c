"""Settings of object stores for obstore: those of fsspec and of the environment, translated.

A setting that obstore does not have is refused, never ignored. obstore reads environment variables
itself; those that only botocore knows are translated here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec

PROTOCOLS = {  # of URLs, and the names under which fsspec has their settings
    "s3": ("s3", "s3a"),
    "s3a": ("s3", "s3a"),
    "gs": ("gcs", "gs"),
    "gcs": ("gcs", "gs"),
    "az": ("abfs", "az", "abfss"),
    "abfs": ("abfs", "az", "abfss"),
    "abfss": ("abfs", "az", "abfss"),
}
ENVIRONMENT_PREFIXES = {"s3": "AWS_", "gcs": "GOOGLE_", "abfs": "AZURE_"}

CONNECT_TIMEOUT, READ_TIMEOUT = "60s", "120s"
# obstore counts the time of an upload as waiting for an answer. A large object may take long on a
# slow link; Linux gives up a connection whose other end is gone after 15 minutes, too.
UPLOAD_TIMEOUT = "15min"
TOTAL_TIMEOUT = "1h"  # obstore would end each request after 30 s, however many bytes have arrived

S3_OPTIONS = {
    "key": "access_key_id",
    "username": "access_key_id",
    "secret": "secret_access_key",
    "password": "secret_access_key",
    "token": "session_token",
    "anon": "skip_signature",
    "endpoint_url": "endpoint",
    "requester_pays": "request_payer",
}
S3_CLIENT_OPTIONS = {  # of client_kwargs
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "endpoint_url": "endpoint",
    "region_name": "region",
}
AZURE_OPTIONS = {
    "account_name": "account_name",
    "account_key": "account_key",
    "sas_token": "sas_key",
    "tenant_id": "tenant_id",
    "client_id": "client_id",
    "client_secret": "client_secret",
    "anon": "skip_signature",
}
FILE_OPTIONS = {  # of files, lists and threads of fsspec, which obstore does not need
    *("asynchronous", "batch_size", "block_size", "cache_regions", "cache_timeout", "cache_type"),
    *("default_block_size", "default_cache_type", "default_fill_cache", "fixed_upload_size"),
    *("listings_expiry_time", "loop", "max_concurrency", "max_paths", "skip_instance_cache"),
    *("use_listings_cache", "blocksize", "consistency", "project", "access", "requests_timeout"),
}
REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
ENDPOINT_VARIABLES = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
PROFILE_VARIABLES = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
AWS_FILES = {
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
    "AWS_CONFIG_FILE": "~/.aws/config",
}


class UnsupportedSettingError(Exception):
    """A setting that obstore does not have; the message names it."""


@dataclass(slots=True)
class ClientSettings:
    """What a client of obstore is created with; it may contain secrets and is never shown."""

    config: dict[str, Any] = field(default_factory=dict, repr=False)
    client: dict[str, Any] = field(default_factory=dict, repr=False)
    max_retries: int = 0


def read_settings(protocol: str) -> tuple[tuple[str, str], ...]:
    """Return all settings of a protocol as they are now, by which clients are cached."""
    names = PROTOCOLS[protocol]
    prefix = ENVIRONMENT_PREFIXES[names[0]]
    environment = [(name, value) for name, value in os.environ.items() if name.startswith(prefix)]
    return (*sorted(environment), ("fsspec", repr(_fsspec_options(protocol))))


def translate_settings(protocol: str) -> ClientSettings:
    """Return the settings of a protocol for obstore.

    Raise UnsupportedSettingError if it does not have one of them.
    """
    settings = ClientSettings()
    settings.client = {
        "connect_timeout": CONNECT_TIMEOUT,
        "read_timeout": READ_TIMEOUT,
        "timeout": TOTAL_TIMEOUT,
    }
    translate = {"s3": _translate_s3, "gcs": _translate_gcs, "abfs": _translate_azure}
    translate[PROTOCOLS[protocol][0]](settings, _fsspec_options(protocol))
    return settings


def _fsspec_options(protocol: str) -> dict[str, Any]:
    """Return the options that users have set in fsspec's configuration for a protocol."""
    found: dict[str, Any] = {}
    for name in PROTOCOLS[protocol]:
        found |= fsspec.config.conf.get(name, {})
    return {name: value for name, value in found.items() if value is not None}


# S3 -----------------------------------------------------------------------------------------------


def _translate_s3(settings: ClientSettings, options: Mapping[str, Any]) -> None:
    """Translate the options of s3fs, and the variables that only botocore knows."""
    config = settings.config
    _check_aws_files(options)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        if os.environ.get(name):
            config["endpoint"] = os.environ[name]
    if bundle := os.environ.get("AWS_CA_BUNDLE"):
        settings.client["root_certificate"] = _read_certificate("AWS_CA_BUNDLE", bundle)
    if attempts := os.environ.get("AWS_MAX_ATTEMPTS"):
        settings.max_retries = _count_retries("AWS_MAX_ATTEMPTS", attempts)
    for name, value in options.items():
        if name in S3_OPTIONS:
            config[S3_OPTIONS[name]] = value
        elif name == "use_ssl":
            if not value and "endpoint_url" not in options:
                raise _unsupported("use_ssl", "Set endpoint_url to an http:// URL instead")
        elif name == "client_kwargs":
            _translate_all(settings, "client_kwargs", value, _translate_client_option)
        elif name == "config_kwargs":
            _translate_all(settings, "config_kwargs", value, _translate_config_option)
        elif name == "version_aware" and not value:
            continue
        elif name not in FILE_OPTIONS:
            raise _unsupported(name)
    if str(config.get("endpoint", "")).startswith("http://"):
        settings.client["allow_http"] = True
    _check_region(config)


def _check_region(config: Mapping[str, Any]) -> None:
    """Raise UnsupportedSettingError if the region of a bucket of AWS is not known.

    botocore follows the server to it. obstore would assume us-east-1, and fail for others.
    """
    variables = (*REGION_VARIABLES, *ENDPOINT_VARIABLES)
    if not any(os.environ.get(name) for name in variables) and not config.keys() & {
        "region",
        "endpoint",
    }:
        raise UnsupportedSettingError(
            "obstore does not look for the region of a bucket. Set AWS_DEFAULT_REGION"
        )


def _check_aws_files(options: Mapping[str, Any]) -> None:
    """Raise UnsupportedSettingError for profiles and files, which only botocore reads."""
    for name in PROFILE_VARIABLES:
        if os.environ.get(name):
            raise _unsupported(name, "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead")
    if "profile" in options:
        raise _unsupported("profile", "Set key and secret instead")
    for name, default in AWS_FILES.items():
        path = os.path.expanduser(os.environ.get(name) or default)
        if os.path.isfile(path):
            raise _unsupported(f"the file {path}", "Set environment variables instead")


def _translate_all(
    settings: ClientSettings,
    group: str,
    options: Mapping[str, Any],
    translate: Callable[[ClientSettings, str, Any], None],
) -> None:
    """Translate the options of a group, whose name goes before theirs in errors."""
    for name, value in options.items():
        try:
            translate(settings, name, value)
        except KeyError:
            raise _unsupported(f"{group}.{name}") from None


def _translate_client_option(settings: ClientSettings, name: str, value: Any) -> None:
    """Translate an option of a client of botocore; raise KeyError if it is unknown."""
    if name == "verify":
        if value is False:
            settings.client["allow_invalid_certificates"] = True
        elif value is not True:
            path = os.fspath(value)
            settings.client["root_certificate"] = _read_certificate("client_kwargs.verify", path)
        return
    settings.config[S3_CLIENT_OPTIONS[name]] = value


def _translate_config_option(settings: ClientSettings, name: str, value: Any) -> None:
    """Translate an option of botocore's Config; raise KeyError if it is unknown."""
    if name in ("connect_timeout", "read_timeout"):
        settings.client[name] = f"{round(1000 * float(value))}ms"
    elif name == "region_name":
        settings.config["region"] = value
    elif name == "retries":
        attempts = value.get("total_max_attempts", value.get("max_attempts", 0) + 1)
        settings.max_retries = _count_retries("config_kwargs.retries", attempts)
    elif name == "signature_version" and value == "s3v4":
        return
    elif name == "s3" and set(value) == {"addressing_style"}:
        if value["addressing_style"] == "virtual":
            if "endpoint" in settings.config:
                raise _unsupported("config_kwargs.s3.addressing_style with an endpoint")
            settings.config["virtual_hosted_style_request"] = True
    elif name != "max_pool_connections":
        raise KeyError(name)


def _count_retries(name: str, attempts: Any) -> int:
    """Return the number of retries of a number of attempts."""
    try:
        return max(int(attempts) - 1, 0)
    except ValueError:
        raise UnsupportedSettingError(f"{name}={attempts!r} is not a number") from None


def _read_certificate(name: str, path: str) -> bytes:
    """Read the certificates of a file that a setting names."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        reason = error.strerror
        raise UnsupportedSettingError(f"{name}={path!r} cannot be read ({reason})") from None


# Google Cloud and Azure ---------------------------------------------------------------------------


def _translate_gcs(settings: ClientSettings, options: Mapping[str, Any]) -> None:
    """Translate the options of gcsfs."""
    for name, value in options.items():
        if name == "token" and value == "anon":
            settings.config["skip_signature"] = True
        elif name == "token" and isinstance(value, str) and os.path.isfile(value):
            settings.config["service_account"] = value
        elif name == "token" and value in ("google_default", "cloud"):
            continue  # where obstore looks by itself
        elif name not in FILE_OPTIONS:
            raise _unsupported(name, "Set GOOGLE_APPLICATION_CREDENTIALS instead")


def _translate_azure(settings: ClientSettings, options: Mapping[str, Any]) -> None:
    """Translate the options of adlfs."""
    if os.environ.get("AZURE_STORAGE_CONNECTION_STRING"):
        remedy = "Set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY instead"
        raise _unsupported("AZURE_STORAGE_CONNECTION_STRING", remedy)
    for name, value in options.items():
        if name in AZURE_OPTIONS:
            settings.config[AZURE_OPTIONS[name]] = value
        elif name not in FILE_OPTIONS:
            raise _unsupported(name, "Set account_name and account_key instead")


def _unsupported(name: str, remedy: str = "Remove it") -> UnsupportedSettingError:
    """Return the error for a setting; its value may be a secret and is left out."""
    return UnsupportedSettingError(f"obstore does not support {name}. {remedy}")
