-- The tables of hm-dianping that a flash sale needs. On a database that a Java node already uses they
-- exist, and nothing here changes them; 0002 adds what they lack.

CREATE TABLE IF NOT EXISTS tb_user (
  id          BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  phone       VARCHAR(11)     NOT NULL COMMENT 'mainland mobile number, 11 digits',
  password    VARCHAR(128)    NULL DEFAULT '' COMMENT 'unused: users sign in by code',
  nick_name   VARCHAR(32)     NULL DEFAULT '',
  icon        VARCHAR(255)    NULL DEFAULT '',
  create_time TIMESTAMP       NOT NULL DEFAULT CURRENT_TIMESTAMP,
  update_time TIMESTAMP       NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
  PRIMARY KEY (id),
  UNIQUE KEY uk_phone (phone)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

CREATE TABLE IF NOT EXISTS tb_shop_type (
  id          BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  name        VARCHAR(32)     NULL,
  icon        VARCHAR(255)    NULL,
  sort        INT UNSIGNED    NULL COMMENT 'position in lists, ascending',
  create_time TIMESTAMP       NOT NULL DEFAULT CURRENT_TIMESTAMP,
  update_time TIMESTAMP       NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
  PRIMARY KEY (id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

CREATE TABLE IF NOT EXISTS tb_shop (
  id          BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  name        VARCHAR(128)    NOT NULL,
  type_id     BIGINT UNSIGNED NOT NULL,
  images      VARCHAR(1024)   NOT NULL COMMENT 'addresses of pictures, comma-separated',
  area        VARCHAR(128)    NULL,
  address     VARCHAR(255)    NOT NULL,
  x           DOUBLE          NOT NULL COMMENT 'longitude, degrees',
  y           DOUBLE          NOT NULL COMMENT 'latitude, degrees',
  avg_price   BIGINT UNSIGNED NULL COMMENT 'yuan',
  sold        INT UNSIGNED    NOT NULL DEFAULT 0,
  comments    INT UNSIGNED    NOT NULL DEFAULT 0,
  score       INT UNSIGNED    NOT NULL DEFAULT 0 COMMENT 'stars times ten',
  open_hours  VARCHAR(32)     NULL,
  create_time TIMESTAMP       NOT NULL DEFAULT CURRENT_TIMESTAMP,
  update_time TIMESTAMP       NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
  PRIMARY KEY (id),
  KEY idx_type (type_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

CREATE TABLE IF NOT EXISTS tb_voucher (
  id           BIGINT UNSIGNED  NOT NULL AUTO_INCREMENT,
  shop_id      BIGINT UNSIGNED  NULL,
  title        VARCHAR(255)     NOT NULL,
  sub_title    VARCHAR(255)     NULL,
  rules        VARCHAR(1024)    NULL,
  pay_value    BIGINT UNSIGNED  NOT NULL COMMENT 'what the buyer pays, cents',
  actual_value BIGINT           NOT NULL COMMENT 'what it is worth, cents',
  type         TINYINT UNSIGNED NOT NULL DEFAULT 0 COMMENT '0 ordinary, 1 flash sale',
  status       TINYINT UNSIGNED NOT NULL DEFAULT 1 COMMENT '1 on the shelf, 2 off, 3 expired',
  create_time  TIMESTAMP        NOT NULL DEFAULT CURRENT_TIMESTAMP,
  update_time  TIMESTAMP        NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
  PRIMARY KEY (id),
  KEY idx_shop (shop_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- One row a flash sale; its voucher's row in tb_voucher has type 1.
CREATE TABLE IF NOT EXISTS tb_seckill_voucher (
  voucher_id  BIGINT UNSIGNED NOT NULL,
  stock       INT             NOT NULL COMMENT 'left to sell; signed, so that an oversell shows',
  create_time TIMESTAMP       NOT NULL DEFAULT CURRENT_TIMESTAMP,
  begin_time  TIMESTAMP       NOT NULL DEFAULT CURRENT_TIMESTAMP,
  end_time    TIMESTAMP       NOT NULL DEFAULT CURRENT_TIMESTAMP,
  update_time TIMESTAMP       NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
  PRIMARY KEY (voucher_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

CREATE TABLE IF NOT EXISTS tb_voucher_order (
  id          BIGINT           NOT NULL COMMENT 'seconds since 2022 << 32 | the day''s counter',
  user_id     BIGINT UNSIGNED  NOT NULL,
  voucher_id  BIGINT UNSIGNED  NOT NULL,
  pay_type    TINYINT UNSIGNED NOT NULL DEFAULT 1 COMMENT '1 balance, 2 Alipay, 3 WeChat',
  status      TINYINT UNSIGNED NOT NULL DEFAULT 1
              COMMENT '1 unpaid, 2 paid, 3 used, 4 cancelled, 5 refunding, 6 refunded',
  create_time TIMESTAMP        NOT NULL DEFAULT CURRENT_TIMESTAMP,
  pay_time    TIMESTAMP        NULL DEFAULT NULL,
  use_time    TIMESTAMP        NULL DEFAULT NULL,
  refund_time TIMESTAMP        NULL DEFAULT NULL,
  update_time TIMESTAMP        NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
  PRIMARY KEY (id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
