package dev.hybridge

import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.channels.awaitClose
import kotlinx.coroutines.channels.trySendBlocking
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.callbackFlow
import kotlinx.coroutines.launch

/**
 * The tokens of [HybridgeSession.generate]. Where the collector is cancelled, so is the generation, and the session's text ends
 * before the last token that was given.
 */
public fun HybridgeSession.flow(
    prompt: LongArray,
    maxNewTokens: Int = 64,
    drafter: Drafter = Drafter.Auto,
    sampling: Sampling = Sampling(),
    mask: Mask? = null,
): Flow<Long> = callbackFlow {
    launch(Dispatchers.IO) {
        try {
            generate(prompt, maxNewTokens, drafter, sampling = sampling, mask = mask) { trySendBlocking(it).isSuccess }
            close()
        } catch (failure: HybridgeException) {
            close(if (failure.status == Status.CANCELLED) CancellationException(failure.message, failure) else failure)
        }
    }
    awaitClose { this@flow.cancel() }
}

/** The pieces of [Chat.send]. Where the collector is cancelled, so is the answer; what was said by then stays. */
public fun Chat.flow(
    message: String,
    maxNewTokens: Int? = null,
    drafter: Drafter = Drafter.Auto,
    sampling: Sampling? = null,
    stops: List<String> = emptyList(),
    grammar: Grammar? = null,
    pictures: List<Picture> = emptyList(),
    toolChoice: String? = null,
    stopAfterReasoning: Boolean = false,
): Flow<Piece> = pieces {
    send(message, maxNewTokens, drafter, sampling, stops, grammar, pictures, toolChoice, stopAfterReasoning, it)
}

/** The pieces of [Chat.giveResults], likewise. */
public fun Chat.resultsFlow(
    results: List<String>,
    maxNewTokens: Int? = null,
    drafter: Drafter = Drafter.Auto,
    sampling: Sampling? = null,
    stops: List<String> = emptyList(),
    grammar: Grammar? = null,
    toolChoice: String? = null,
    stopAfterReasoning: Boolean = false,
): Flow<Piece> = pieces {
    giveResults(results, maxNewTokens, drafter, sampling, stops, grammar, toolChoice, stopAfterReasoning, it)
}

private fun Chat.pieces(answer: Chat.((Piece) -> Boolean) -> Answer): Flow<Piece> = callbackFlow {
    launch(Dispatchers.IO) {
        try {
            answer { trySendBlocking(it).isSuccess }
            close()
        } catch (failure: HybridgeException) {
            close(if (failure.status == Status.CANCELLED) CancellationException(failure.message, failure) else failure)
        }
    }
    awaitClose { this@pieces.cancel() }
}
