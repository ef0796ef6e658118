#include "tests/support/hub/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <stdexcept>

namespace twofour {
namespace {

bool send_all(int fd, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t sent = ::send(fd, text.data() + at, text.size() - at, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += static_cast<size_t>(sent);
  }
  return true;
}

ServerRequest parse_request(const std::string& head) {
  ServerRequest request;
  const size_t method = head.find(' '), target = head.find(' ', method + 1);
  request.method = head.substr(0, method);
  request.path = head.substr(method + 1, target - method - 1);
  if (const size_t query = request.path.find('?'); query != std::string::npos) {
    request.query = request.path.substr(query + 1);
    request.path.erase(query);
  }
  for (size_t line = head.find("\r\n"); line != std::string::npos;) {
    const size_t begin = line + 2, end = head.find("\r\n", begin);
    const std::string text = head.substr(begin, end == std::string::npos ? end : end - begin);
    if (const size_t colon = text.find(':'); colon != std::string::npos) {
      std::string name = text.substr(0, colon);
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      request.fields[name] = text.substr(std::min(text.find_first_not_of(' ', colon + 1), text.size()));
    }
    line = end;
  }
  return request;
}

}  // namespace

std::string ServerRequest::field(const std::string& name) const {
  const auto at = fields.find(name);
  return at == fields.end() ? "" : at->second;
}

HttpServer::HttpServer(Handler handler) : handler_(std::move(handler)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (listener_ < 0 || ::bind(listener_, generic, size) != 0 || ::listen(listener_, 64) != 0 ||
      ::getsockname(listener_, generic, &size) != 0) {
    throw std::runtime_error("cannot listen on 127.0.0.1");
  }
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { accept_all(); });
}

HttpServer::~HttpServer() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
    for (const int fd : open_) ::shutdown(fd, SHUT_RDWR);
  }
  ::shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  for (std::thread& connection : connections_) connection.join();
  ::close(listener_);
}

std::string HttpServer::origin() const { return "http://127.0.0.1:" + std::to_string(port_); }

void HttpServer::accept_all() {
  for (;;) {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    const std::lock_guard lock(mutex_);
    if (stops_) {
      if (fd >= 0) ::close(fd);
      return;
    }
    if (fd < 0) continue;
    open_.insert(fd);
    connections_.emplace_back([this, fd] {
      serve(fd);
      const std::lock_guard done(mutex_);
      open_.erase(fd);
      ::close(fd);
    });
  }
}

void HttpServer::serve(int fd) {
  std::string read;
  for (;;) {
    size_t end;
    while ((end = read.find("\r\n\r\n")) == std::string::npos) {
      char piece[4096];
      const ssize_t got = ::recv(fd, piece, sizeof piece, 0);
      if (got <= 0) return;
      read.append(piece, static_cast<size_t>(got));
    }
    const ServerRequest request = parse_request(read.substr(0, end));
    read.erase(0, end + 4);
    const ServerAnswer answer = handler_(request);
    std::string head = "HTTP/1.1 " + std::to_string(answer.status) + " x\r\n";
    for (const std::string& field : answer.fields) head += field + "\r\n";
    head += "Content-Length: " + std::to_string(answer.announced.value_or(answer.body.size())) + "\r\n\r\n";
    if (!send_all(fd, request.method == "HEAD" ? head : head + answer.body)) return;
    if (answer.closes) {
      ::shutdown(fd, SHUT_RDWR);
      return;
    }
  }
}

ServerAnswer answer_range(const ServerRequest& request, const std::string& body) {
  ServerAnswer answer;
  answer.fields.push_back("Accept-Ranges: bytes");
  unsigned long long first = 0, last = 0;
  const std::string range = request.field("range");
  const int found = std::sscanf(range.c_str(), "bytes=%llu-%llu", &first, &last);
  if (found < 1) {
    answer.body = body;
    return answer;
  }
  if (first >= body.size()) {
    answer.status = 416;
    answer.fields.push_back("Content-Range: bytes */" + std::to_string(body.size()));
    return answer;
  }
  if (found < 2 || last >= body.size()) last = body.size() - 1;
  answer.status = 206;
  answer.fields.push_back("Content-Range: bytes " + std::to_string(first) + "-" + std::to_string(last) + "/" +
                          std::to_string(body.size()));
  answer.body = body.substr(first, last - first + 1);
  return answer;
}

}  // namespace twofour
