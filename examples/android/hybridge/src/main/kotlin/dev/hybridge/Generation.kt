package dev.hybridge

/** Takes a token of a generation; answers false to end it after this one. */
public fun interface OnToken {
    public fun take(token: Long): Boolean
}

/**
 * Decides what may come after a text: it makes those of the logits minus infinity whose tokens may not. It is asked for each
 * token, draft tokens that are verified included. One that leaves none ends the generation with [Status.INVALID_GRAMMAR].
 */
public fun interface Mask {
    public fun apply(text: LongArray, logits: FloatArray)
}

/** Where draft tokens come from. Greedily and with a seed the text is the same with each of them. */
public sealed interface Drafter {
    /** Nowhere: plain decoding. */
    public data object None : Drafter

    /** The text so far. */
    public data object PromptLookup : Drafter

    /** Prompt lookup, and the drafter inside the model if it has one: each round asks the one that promises most, or none. */
    public data object Auto : Drafter

    /** The drafter inside the model, where [ModelInfo.draftLen] is not 0. */
    public data object Own : Drafter

    /**
     * A smaller model over the same tokens, exported with snapshot slots. Keep it open as long as it drafts; a session keeps a
     * session of it while it is given the same one.
     */
    public class Model(public val model: HybridgeModel) : Drafter
}

/**
 * How tokens are drawn: a [temperature] of 0 is greedy, a [topK] of 0 and the other defaults leave the distribution as it is. Of
 * the same [seed] comes the same text, with every drafter; without one a seed is drawn. hybridge.h says what each option does.
 *
 * @param logitBias numbers from -100 to 100 that are added to the logits of tokens.
 */
public data class Sampling(
    val temperature: Double = 0.0,
    val topK: Int = 0,
    val topP: Double = 1.0,
    val minP: Double = 0.0,
    val repetitionPenalty: Double = 1.0,
    val seed: Long? = null,
    val presencePenalty: Double = 0.0,
    val frequencyPenalty: Double = 0.0,
    val repeatLastN: Long = -1,
    val topNSigma: Double = 0.0,
    val dryMultiplier: Double = 0.0,
    val dryBase: Double = 1.75,
    val dryAllowedLength: Int = 2,
    val dryBreakers: List<Long> = emptyList(),
    val logitBias: Map<Long, Double> = emptyMap(),
)

/** Counts of one generation: its tokens, draft tokens proposed and accepted, and blocks verified and not accepted whole. */
public data class Generated(
    val tokens: Int,
    val proposed: Int,
    val accepted: Int,
    val verifies: Int,
    val rollbacks: Int,
)

/** hybridge_drafter of hybridge.h. */
internal fun Drafter.code(): Long = when (this) {
    Drafter.None -> 0
    Drafter.PromptLookup -> 1
    Drafter.Own -> 2
    is Drafter.Model -> 3
    Drafter.Auto -> 5
}

/**
 * What hybridge_jni.cpp takes of a generation: whole numbers, and numbers of the sampling.
 *
 * @param maxNewTokens null for no limit.
 * @param sampling null for the model's own.
 */
internal fun wishes(
    maxNewTokens: Int?,
    blockLength: Int,
    drafter: Drafter,
    sampling: Sampling?,
    grammar: Grammar?,
    stopAfterReasoning: Boolean = false,
): Pair<LongArray, DoubleArray> {
    val draws = sampling ?: Sampling()
    val seed = draws.seed
    val biases = draws.logitBias.toList()
    val options = longArrayOf(
        maxNewTokens?.toLong() ?: Long.MAX_VALUE,
        blockLength.toLong(),
        drafter.code(),
        if (drafter is Drafter.Model) drafter.model.handle else 0,
        grammar?.handle ?: 0,
        if (stopAfterReasoning) 1 else 0,
        if (sampling == null) 0 else 1,
        draws.topK.toLong(),
        seed ?: 0,
        if (seed == null) 0 else 1,
        draws.repeatLastN,
        draws.dryAllowedLength.toLong(),
        draws.dryBreakers.size.toLong(),
    ) + draws.dryBreakers + biases.map { it.first }
    val numbers = draws.run {
        doubleArrayOf(
            temperature, topP, minP, repetitionPenalty, presencePenalty, frequencyPenalty, topNSigma, dryMultiplier, dryBase,
        )
    }
    return options to numbers + biases.map { it.second }
}

/** The counts that hybridge_jni.cpp answers with, from a place of an array on. */
internal fun generated(counts: LongArray, from: Int = 0): Generated {
    val (tokens, proposed, accepted, verifies, rollbacks) = counts.drop(from).map { it.toInt() }
    return Generated(tokens, proposed, accepted, verifies, rollbacks)
}
