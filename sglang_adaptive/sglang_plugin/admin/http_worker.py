"""SGLang's HTTP application with this package added, for HTTP workers to import.

An HTTP worker (``--tokenizer-worker-num``) loads no plugins. Before uvicorn starts the application, this module adds
what the launcher adds to its own application when it serves without workers.
"""

from __future__ import annotations

import logging
import os
import signal

from uvicorn.importer import import_from_string

from sglang_adaptive.sglang_plugin import env, hooks
from sglang_adaptive.sglang_plugin.admin import route
from sglang_adaptive.sglang_plugin.hooks import Process
from sglang_adaptive.sglang_plugin.notes import NOTE
from sglang_adaptive.sglang_plugin.page import routes

logger = logging.getLogger(__name__)


def _add_all() -> None:
    """Add hooks, the admin layer and the page; after an error the worker serves without them."""
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.entrypoints import http_server
    from sglang.srt.managers import multi_tokenizer_mixin as workers
    from sglang.srt.utils import auth

    try:
        shared = workers.read_from_shared_memory(f"multi_tokenizer_args_{workers.get_main_process_id()}")
        _, server_args, scheduler_info = shared
        if not hasattr(server_args, NOTE):
            return  # a later server of the same launcher, without adaptive speculation
        hooks.install_now(hooks.hooks(Process.HTTP))
        route.add_layer(server_args, scheduler_info)
        routes.install()
        if key := resolving_view(server_args).admin_api_key:  # SGLang 0.5.23 does not require it in workers
            auth.add_api_key_middleware(http_server.app, api_key=None, admin_api_key=key)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the running application handles it
    except Exception:
        logger.exception(
            "adaptive: this HTTP worker serves no page and accepts neither a configuration nor a held depth"
        )


_add_all()
app = import_from_string(os.environ[env.HTTP_APPLICATION])
