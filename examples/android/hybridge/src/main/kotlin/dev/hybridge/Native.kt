package dev.hybridge

/** The functions of hybridge_jni.cpp; each answers with a [Status]'s code and puts results into the arrays that it is given. */
internal object Native {
    init {
        if (!Bundled.load()) System.loadLibrary("hybridge_jni") // of an Android package, or in java.library.path
    }

    @JvmStatic external fun version(): String

    @JvmStatic external fun failure(): ByteArray

    @JvmStatic external fun setThreads(count: Int): Int

    @JvmStatic external fun modelOpen(path: ByteArray, model: LongArray): Int

    @JvmStatic external fun modelClose(model: Long): Int

    @JvmStatic external fun modelLimit(model: Long, maxSeqLen: Long): Int

    @JvmStatic external fun delegateFrom(model: Long, tokens: Long): Int

    @JvmStatic external fun strictReuse(model: Long, wanted: Boolean): Int

    @JvmStatic external fun modelInfo(model: Long, info: LongArray): Int

    @JvmStatic external fun validate(model: Long, path: ByteArray, counts: LongArray, errors: DoubleArray): Int

    @JvmStatic external fun modelEosIds(model: Long, ids: LongArray?, count: LongArray): Int

    @JvmStatic external fun cacheOpen(model: Long, bytes: Long, cache: LongArray): Int

    @JvmStatic external fun cacheClose(cache: Long): Int

    @JvmStatic external fun pictureOpen(model: Long, rgb: ByteArray, width: Int, height: Int, picture: LongArray): Int

    @JvmStatic external fun pictureClose(picture: Long): Int

    @JvmStatic external fun pictureIds(picture: Long, ids: LongArray?, count: LongArray): Int

    @JvmStatic external fun sessionOpen(model: Long, session: LongArray): Int

    @JvmStatic external fun sessionClose(session: Long): Int

    @JvmStatic external fun tokens(session: Long, text: LongArray?, count: LongArray): Int

    @JvmStatic external fun delegated(session: Long, places: LongArray?, count: LongArray): Int

    @JvmStatic external fun promptsRead(session: Long, counts: LongArray, reason: Array<ByteArray?>): Int

    @JvmStatic external fun prefill(session: Long, prompt: LongArray, logits: FloatArray?): Int

    @JvmStatic external fun decode(session: Long, token: Long, logits: FloatArray?): Int

    @JvmStatic external fun verify(session: Long, block: LongArray, logits: FloatArray?): Int

    @JvmStatic external fun commit(session: Long, count: Long): Int

    @JvmStatic external fun snapshot(session: Long, slot: Long): Int

    @JvmStatic external fun restore(session: Long, slot: Long): Int

    @JvmStatic external fun reset(session: Long): Int

    @JvmStatic external fun save(session: Long, path: ByteArray): Int

    @JvmStatic external fun load(session: Long, path: ByteArray): Int

    @JvmStatic external fun checkpointMake(session: Long, checkpoint: LongArray): Int

    @JvmStatic external fun checkpointInfo(checkpoint: Long, kept: LongArray): Int

    @JvmStatic external fun checkpointClose(checkpoint: Long): Int

    @JvmStatic external fun resume(session: Long, checkpoint: Long): Int

    @JvmStatic external fun bringTo(session: Long, cache: Long, text: LongArray, known: LongArray): Int

    @JvmStatic external fun generate(
        session: Long,
        prompt: LongArray,
        options: LongArray,
        sampling: DoubleArray,
        mask: Mask?,
        onToken: OnToken?,
        generated: LongArray,
    ): Int

    @JvmStatic external fun cancel(session: Long): Int

    @JvmStatic external fun tokenizerOpen(path: ByteArray, tokenizer: LongArray): Int

    @JvmStatic external fun tokenizerClose(tokenizer: Long): Int

    @JvmStatic external fun tokenizerEncode(tokenizer: Long, text: ByteArray, reading: Int, tokens: LongArray?, count: LongArray): Int

    @JvmStatic external fun tokenizerDecode(tokenizer: Long, tokens: LongArray, skipSpecial: Boolean, text: Array<ByteArray?>): Int

    @JvmStatic external fun textOpen(tokenizer: Long, skipSpecial: Boolean, text: LongArray): Int

    @JvmStatic external fun textPush(text: Long, token: Long, piece: Array<ByteArray?>): Int

    @JvmStatic external fun textFinish(text: Long, piece: Array<ByteArray?>): Int

    @JvmStatic external fun textClose(text: Long): Int

    @JvmStatic external fun grammarOpen(tokenizer: Long, kind: Int, says: ByteArray, grammar: LongArray): Int

    @JvmStatic external fun grammarClose(grammar: Long): Int

    @JvmStatic external fun artifactOpen(folder: ByteArray, artifact: LongArray): Int

    @JvmStatic external fun artifactClose(artifact: Long): Int

    @JvmStatic external fun artifactModel(artifact: Long, model: LongArray): Int

    @JvmStatic external fun artifactTokenizer(artifact: Long, tokenizer: LongArray): Int

    @JvmStatic external fun artifactSampling(artifact: Long, sampling: DoubleArray, topK: LongArray): Int

    @JvmStatic external fun chatOpen(
        artifact: Long,
        system: ByteArray?,
        thinking: Int,
        checkpointBytes: Long,
        variables: ByteArray?,
        tools: ByteArray?,
        chat: LongArray,
    ): Int

    @JvmStatic external fun chatClose(chat: Long): Int

    @JvmStatic external fun chatShow(chat: Long, pictures: LongArray): Int

    @JvmStatic external fun chatSend(
        chat: Long,
        message: ByteArray,
        options: LongArray,
        sampling: DoubleArray,
        stops: Array<ByteArray>,
        toolChoice: ByteArray?,
        onPiece: OnPiece?,
        answered: LongArray,
    ): Int

    @JvmStatic external fun chatGiveResults(
        chat: Long,
        results: Array<ByteArray>,
        options: LongArray,
        sampling: DoubleArray,
        stops: Array<ByteArray>,
        toolChoice: ByteArray?,
        onPiece: OnPiece?,
        answered: LongArray,
    ): Int

    @JvmStatic external fun chatRetry(
        chat: Long,
        options: LongArray,
        sampling: DoubleArray,
        stops: Array<ByteArray>,
        toolChoice: ByteArray?,
        onPiece: OnPiece?,
        answered: LongArray,
    ): Int

    @JvmStatic external fun chatContinue(
        chat: Long,
        options: LongArray,
        sampling: DoubleArray,
        stops: Array<ByteArray>,
        toolChoice: ByteArray?,
        onPiece: OnPiece?,
        answered: LongArray,
    ): Int

    @JvmStatic external fun chatSetSystem(chat: Long, system: ByteArray): Int

    @JvmStatic external fun chatUndo(chat: Long): Int

    @JvmStatic external fun chatReset(chat: Long): Int

    @JvmStatic external fun chatCancel(chat: Long): Int

    @JvmStatic external fun chatSave(chat: Long, path: ByteArray): Int

    @JvmStatic external fun chatLoad(chat: Long, path: ByteArray): Int

    @JvmStatic external fun chatMessages(chat: Long, messages: Array<Array<ByteArray>?>?, counts: LongArray): Int
}

/** Calls [body] and throws where it does not answer with [Status.OK]. */
internal inline fun expectOk(body: () -> Int) {
    val code = body()
    if (code == 0) return
    throw HybridgeException(Status.of(code), Native.failure().decodeToString())
}

/** Returns a text for C, which reads it up to its first NUL. Throws with [Status.INVALID_ARGUMENT] for one with a NUL inside. */
internal fun terminated(name: String, text: String): ByteArray {
    if ('\u0000' in text) throw HybridgeException(Status.INVALID_ARGUMENT, "$name has a NUL character: remove it")
    return text.encodeToByteArray()
}

/** Returns the text that [body] puts into an array of one. */
internal inline fun text(body: (Array<ByteArray?>) -> Int): String {
    val bytes = arrayOfNulls<ByteArray>(1)
    expectOk { body(bytes) }
    return bytes[0]!!.decodeToString()
}

/** Returns an array that [body] fills, which tells its length where it is given none. */
internal inline fun filled(body: (LongArray?, LongArray) -> Int): LongArray {
    val count = LongArray(1)
    expectOk { body(null, count) }
    val values = LongArray(count[0].toInt())
    expectOk { body(values, count) }
    return values
}
