// hybridge-cli inspect: shows what an artifact's manifest says, after checking its hashes.

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "commands.h"
#include "failure.h"
#include "folder.h"
#include "output.h"
#include "text_model.h"

namespace hybridge::cli {

namespace {

using text::Json;

constexpr uint64_t LARGEST = uint64_t(1) << 62;

// A value as on the command line: lists with commas, a null as "none".
std::string shown(const Json& value) {
  if (!value) return "none";
  if (value.is_string()) return std::string(value.string());
  if (value.is_array()) {
    std::string all;
    value.each([&](const Json& each) { all += (all.empty() ? "" : ", ") + shown(each); });
    return all.empty() ? "none" : all;
  }
  if (value.is_object()) return "…";
  if (value.is_boolean()) return value.boolean() ? "True" : "False";
  const double number = value.number();
  return number == std::floor(number) ? formatted("%.0f", number) : formatted("%g", number);
}

std::string vocabulary(const Json& entry) {
  const std::string source = shown(entry["source"]);
  const char* chosen = source == "first"  ? "the first ones"
                       : source == "self" ? "those that the model says"
                                          : "those of a text";
  const std::string share = entry["coverage"]
                                ? formatted(
                                      ", %.1f%% of texts that they were not chosen by", 100 * entry["coverage"].number()
                                  )
                                : "";
  return shown(entry["tokens"]) + " tokens (" + chosen + share + ")";
}

std::string drafter(const Json& entry) {
  const std::string drawn = entry["samples"].boolean_or(false) ? "best or drawn" : "best";
  const std::string among = entry["vocabulary"] ? ", among " + vocabulary(entry["vocabulary"]) : "";
  return shown(entry["kind"]) + ": " + drawn + " tokens in blocks of " + shown(entry["blocks"]) +
         ", from the hidden states " + shown(entry["taps"]) + among;
}

std::string file(const Json& entry) {
  const std::string size = megabytes(static_cast<double>(entry["size"].integer(LARGEST)));
  return size + "  sha256 " + std::string(entry["sha256"].string().substr(0, 16)) + "…";
}

std::string bits(const Json& manifest) {
  const auto parameters = static_cast<double>(manifest["parameters"].integer(LARGEST));
  const auto size = static_cast<double>(manifest["files"]["model.pte"]["size"].integer(LARGEST));
  return formatted("%.2f, of the whole file for %.1f million", 8 * size / std::max(parameters, 1.0), parameters / 1e6);
}

std::string versions(const Json& entry) {
  std::string all;
  entry.each_entry([&](std::string_view name, const Json& version) {
    all += (all.empty() ? "" : ", ") + std::string(name) + " " + shown(version);
  });
  return all;
}

uint64_t sum(const Json& layers, const char* key) {
  uint64_t bytes = 0;
  layers.each([&](const Json& each) { bytes += each[key].integer(LARGEST); });
  return bytes;
}

std::string state(const Json& layers) {
  const auto digits = [&](const char* key) { return std::to_string(sum(layers, key)); };
  return digits("state_bytes") + " bytes, + rollback " + digits("rollback_bytes") + ", + slots " + digits("slot_bytes");
}

// How chats are written, as hybridge inspect says it.
std::string chats(const ArtifactFolder& folder) {
  const text::JsonDocument document(description(open_templates(folder)));
  const Json root = document.root("the chat template");
  std::string names;
  root["names"].each([&](const Json& each) { names += (names.empty() ? "" : ", ") + std::string(each.string()); });
  if (names.empty()) return "none: there is no chat template, so the model was not made to chat";
  const std::string pictures = folder.manifest()["pictures"] ? ", with pictures" : "";
  const bool can_switch = !root["thinking_switch"].string().empty();
  return "by its chat template (" + names + ")" + pictures + "; " +
         (can_switch ? "thinking can be switched" : "no switch for thinking");
}

// How texts are sampled unless options say otherwise.
std::string sampling(const ArtifactFolder& folder) {
  const hybridge_sampling own = model_sampling(folder), plain = hybridge_sampling_defaults();
  if (own.temperature == 0) return "greedy";
  const std::initializer_list<std::pair<const char*, double hybridge_sampling::*>> numbers = {
      {"top_p", &hybridge_sampling::top_p},
      {"min_p", &hybridge_sampling::min_p},
      {"repetition_penalty", &hybridge_sampling::repetition_penalty},
      {"presence_penalty", &hybridge_sampling::presence_penalty},
      {"frequency_penalty", &hybridge_sampling::frequency_penalty},
  };
  std::string all = "temperature " + formatted("%g", own.temperature);
  if (own.top_k > 0) all += ", top_k " + std::to_string(own.top_k);
  for (const auto& [name, field] : numbers) {
    if (own.*field != plain.*field) all += std::string(", ") + name + " " + formatted("%g", own.*field);
  }
  return all;
}

// The accelerator, what it reads, and the bytes that it adds, as hybridge inspect says it.
std::string delegate(const Json& manifest) {
  const Json options = manifest["options"], methods = manifest["methods"];
  std::string takes;
  uint64_t parts = 0, bytes = 0;
  options["delegate_methods"].each([&](const Json& name) {
    const bool reads = name.string() == "prefill";
    const Json method = methods[reads ? "delegate_prefill" : "delegate_vision_encoder"];
    method["delegates"].each_entry([&](std::string_view, const Json& count) { parts += count.integer(LARGEST); });
    bytes += method["delegate_bytes"] ? method["delegate_bytes"].integer(LARGEST) : 0;
    takes += takes.empty() ? " " : " and ";
    takes += reads ? "reads prompts from " + shown(options["delegate_from"]) + " tokens on" : "encodes pictures";
  });
  const uint64_t whole = manifest["files"]["model.pte"]["size"].integer(LARGEST);
  return shown(options["delegate"]) + ":" + shown(options["delegate_device"]) + takes + ", in " +
         std::to_string(parts) + " parts of " + megabytes(static_cast<double>(bytes)) + ", of " +
         megabytes(static_cast<double>(whole)) + " in all, with weights in " + shown(options["delegate_weights"]) +
         "; the CPU's own methods do the rest, and all without it";
}

// What a person asks first, as hybridge inspect says it.
std::vector<Row> essentials(const ArtifactFolder& folder) {
  const Json manifest = folder.manifest(), layers = manifest["layers"];
  const auto megabytes_of = [](uint64_t bytes) { return megabytes(static_cast<double>(bytes)); };
  const uint64_t size = manifest["files"]["model.pte"]["size"].integer(LARGEST);
  const auto parameters = static_cast<double>(manifest["parameters"] ? manifest["parameters"].integer(LARGEST) : 0);
  const std::string weights = parameters > 0 ? formatted(
                                                   ", %.1f million weights of %.2f bits", parameters / 1e6,
                                                   8 * static_cast<double>(size) / parameters
                                               )
                                             : "";
  const bool verifies = manifest["options"]["verify_len"].integer(LARGEST) > 1;
  const std::string own = manifest["drafter"] ? "its own (" + shown(manifest["drafter"]["kind"]) + ") and prompt lookup"
                                              : "prompt lookup";
  std::vector<Row> rows = {
      {"model", shown(manifest["model_type"]) + (manifest["source"] ? ", made of " + shown(manifest["source"]) : "")},
      {"size", megabytes_of(size) + weights},
      {"context", shown(manifest["options"]["max_seq_len"]) + " tokens"},
      {"memory", megabytes_of(manifest["weight_bytes"].integer(LARGEST)) + " of weights, " +
                     megabytes_of(sum(layers, "state_bytes")) + " of state for a full context, " +
                     megabytes_of(sum(layers, "rollback_bytes") + sum(layers, "slot_bytes")) + " to go back"},
  };
  if (manifest["options"]["delegate"].string_or("none") != "none") rows.push_back({"delegate", delegate(manifest)});
  rows.push_back({"drafter", verifies ? own : "none: it verifies one token at a time"});
  rows.push_back({"use", "Python, C, C++, Kotlin, Swift and JavaScript; chats " + chats(folder)});
  return rows;
}

std::vector<Row> summary(const ArtifactFolder& folder) {
  const Json manifest = folder.manifest();
  std::vector<Row> rows = {
      {"format version", shown(manifest["format_version"])},
      {"model type", shown(manifest["model_type"])},
  };
  if (manifest["source"]) rows.push_back({"made of", shown(manifest["source"])});
  const std::string tokens = shown(manifest["vocab_size"]);
  rows.push_back(
      {"vocabulary", tokens + " tokens, bos " + shown(manifest["bos_id"]) + ", eos " + shown(manifest["eos_ids"])}
  );
  manifest["options"].each_entry([&](std::string_view name, const Json& value) {
    rows.push_back({std::string(name), shown(value)});
  });
  manifest["files"].each_entry([&](std::string_view name, const Json& entry) {
    rows.push_back({std::string(name), file(entry)});
  });
  rows.push_back({"weights", megabytes(static_cast<double>(manifest["weight_bytes"].integer(LARGEST)))});
  if (manifest["parameters"]) rows.push_back({"bits a weight", bits(manifest)});
  if (manifest["drafter"]) rows.push_back({"drafter", drafter(manifest["drafter"])});
  rows.push_back({"chats", chats(folder)});
  rows.push_back({"sampling", sampling(folder)});
  rows.push_back({"made with", versions(manifest["versions"])});
  rows.push_back({"layers", std::to_string(manifest["layers"].size())});
  rows.push_back({"state", state(manifest["layers"])});
  return rows;
}

}  // namespace

void inspect(Words words) {
  std::string artifact;
  bool json = false, everything = false;
  Arguments arguments(
      "inspect", "Show an artifact's size, context, memory, drafter and uses, after checking its hashes."
  );
  arguments.word("ARTIFACT", "An exported artifact: the folder that 'hybridge export' wrote.", artifact);
  arguments.flag("--all", "Also show options, files and versions.", everything);
  arguments.flag("--json", "Print the manifest as it is written.", json);
  if (!arguments.read(words)) return;
  const ArtifactFolder folder(artifact);
  folder.check_hashes();
  if (json) {
    write_out(folder.manifest_text());
  } else {
    print_rows(stdout, essentials(folder));
    if (everything) print_rows(stdout, summary(folder));
  }
}

}  // namespace hybridge::cli
