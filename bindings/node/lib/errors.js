"use strict";

/** hybridge_status of hybridge.h, in its order. */
const STATUSES = [
  "OK", "INVALID_ARGUMENT", "INVALID_HANDLE", "BUSY", "NO_ROOM", "INVALID_STATE", "INVALID_ARTIFACT", "UNREADABLE_FILE",
  "MISSING_OPERATOR", "OUT_OF_MEMORY", "INTERNAL", "CANCELLED", "NOT_FINITE", "BROKEN_STATE", "PROGRAM_FAILED", "INVALID_TOKEN",
  "INVALID_COMMIT", "INVALID_SLOT", "INVALID_DRAFTER", "INVALID_PICTURE", "INVALID_GRAMMAR", "INVALID_TEMPLATE",
  "INVALID_SAVED_STATE", "UNWRITABLE_FILE", "OTHER_MODEL", "UNSUPPORTED", "CALLBACK_FAILED",
];

/** A refused or failed call. `code`: a status of hybridge.h, or LIBRARY if the native library cannot be used. */
class HybridgeError extends Error {
  constructor(code, message) {
    super(message);
    this.name = "HybridgeError";
    this.code = code;
  }
}

/** Return what a call of the addon threw as a HybridgeError, or as it is if the addon did not make it. */
function asHybridgeError(error) {
  return typeof error?.status === "number" ? new HybridgeError(STATUSES[error.status] ?? "INTERNAL", error.message) : error;
}

/** Wait for a promise of the addon; its errors get the caller's stack. */
async function run(promise) {
  try {
    return await promise;
  } catch (error) {
    throw asHybridgeError(error);
  }
}

module.exports = { HybridgeError, STATUSES, asHybridgeError, run };
