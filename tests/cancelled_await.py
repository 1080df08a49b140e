"""What an await that is cancelled leaves of a request, for the tests of loaders."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest


def batch_of_a_second_await(batches, between):
    """Asks for a batch that cannot come yet and cancels the await of it; then `between(request)`, and awaits it again."""

    async def wait_twice():
        # Of one thread: what goes on waiting ends before the next await.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        request = batches.request()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(request, 0.01)
        between(request)
        return await request

    return asyncio.run(wait_twice())
